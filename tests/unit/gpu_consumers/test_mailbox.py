import asyncio

import pytest

from gpu_consumers.mailbox import Mailbox
from gpu_consumers.worklist import Worklist


def test_the_reader_is_woken_once_for_all_that_gathered():
    wakes = []
    box = Mailbox(lambda: wakes.append(1))
    for n in range(5):
        box.put(n)
    assert len(wakes) == 1
    assert box.take() == [0, 1, 2, 3, 4]
    box.put(5)
    assert len(wakes) == 2
    assert box.take() == [5]
    assert box.take() == []


@pytest.mark.asyncio
async def test_a_worklist_hands_out_everything_at_once_and_takes_it_back_in_front():
    work = Worklist()
    work.add(1)
    work.add(2)
    assert await work.take() == [1, 2]
    work.add(3)
    work.put_back([1, 2])
    assert await work.take() == [1, 2, 3]
    waiting = asyncio.ensure_future(work.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    work.put_back([])
    await asyncio.sleep(0)
    assert not waiting.done()
    work.add(4)
    assert await waiting == [4]
