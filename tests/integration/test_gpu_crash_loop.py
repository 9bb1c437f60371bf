"""A request that ends every consumer that runs it."""

import os
import signal

import msgspec
import pytest

from tests.support.builders import body
from tests.support.gpu import wait_until
from tests.support.openai_server import Hosted, OpenAiServer
from topics.outcomes import Outcome, Reason

MARK = "the request that nobody survives"


class DeadlyServer(OpenAiServer):
    """Takes its consumer along when it gets the marked request."""

    def __init__(self, rig):
        super().__init__()
        self.pause_s, self.deaths = 0.1, 0
        self._rig = rig

    async def complete(self, request):
        if MARK.encode() in await request.read():
            self.deaths += 1
            os.kill(self._rig.consumers[-1].process.pid, signal.SIGKILL)
        return await super().complete(request)


@pytest.fixture
def deadly(rig):
    hosted = Hosted(DeadlyServer(rig))
    yield hosted.server
    hosted.close()


@pytest.mark.behaviour(18)
def test_a_request_that_ends_its_consumers_is_given_up_and_its_neighbours_are_answered(rig, deadly):
    neighbours = [f"r{n}" for n in range(12)]
    rig.put(*(rig.work(request_id) for request_id in neighbours[:3]), partition=0)
    rig.put(rig.work("deadly", body=msgspec.Raw(body(MARK))), partition=0)
    rig.put(*(rig.work(request_id) for request_id in neighbours[3:8]), partition=0)
    rig.put(*(rig.work(request_id) for request_id in neighbours[8:]), partition=1)
    gpu = {"engine": "openai", "openai_base_url": deadly.url, "window_requests": 8, "max_takeovers": 2}
    for _ in range(3):
        assert rig.start(**gpu).process.wait(60) == -signal.SIGKILL
    last = rig.start(**gpu)
    replies = rig.wait_replies(13, limit_s=60)
    assert (replies["deadly"].outcome, replies["deadly"].reason) == (Outcome.FAILED, Reason.CRASH_LOOP)
    assert {replies[request_id].outcome for request_id in neighbours} == {Outcome.COMPLETED}
    wait_until(lambda: len(rig.dead_letters()) == 1, "a dead letter", last)
    (letter,) = rig.dead_letters()
    assert (letter.id, letter.reason) == ("deadly", Reason.CRASH_LOOP)
    assert (letter.topic, letter.partition, letter.offset) == (rig.lane(), 0, 3)
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == 13, "all is committed", last)
    assert deadly.deaths == 3
    assert len(rig.by_id()) == 13
    assert all(MARK not in consumer.log() for consumer in rig.consumers)
    assert last.terminate() == 0
