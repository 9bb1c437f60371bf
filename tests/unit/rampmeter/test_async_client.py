import asyncio

import pytest

from rampmeter.async_client import NoAnswer, PendingAnswer
from tests.support.clock import FakeClock
from topics.outcomes import Outcome
from topics.records import Reply

REPLY = Reply(id="r1", outcome=Outcome.COMPLETED)


def pending(inbox):
    return PendingAnswer("r1", "acme", None, FakeClock(), inbox, lambda: None)


@pytest.mark.asyncio
async def test_whoever_cancels_its_wait_is_obeyed_though_the_answer_comes_at_that_moment():
    inbox = asyncio.Queue()
    waiting = asyncio.create_task(pending(inbox).result(60))
    await asyncio.sleep(0)
    inbox.put_nowait(REPLY)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert inbox.qsize() == 1, "another wait finds it"


@pytest.mark.asyncio
async def test_an_answer_that_is_there_is_given_without_any_wait():
    inbox = asyncio.Queue()
    with pytest.raises(NoAnswer):
        await pending(inbox).result(0)
    inbox.put_nowait(REPLY)
    assert await pending(inbox).result(0) == REPLY
