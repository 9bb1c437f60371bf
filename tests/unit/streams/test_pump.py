"""Batches of several agents that are carried out together."""

import asyncio

import pytest

from streams.pump import Pump


class Work:
    """Carries out when it is let."""

    def __init__(self):
        self.batches = []
        self.may_end = asyncio.Event()

    async def carry_out(self, batch):
        self.batches.append(list(batch))
        await self.may_end.wait()


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_what_arrives_meanwhile_goes_together_and_each_waits_for_its_own():
    work = Work()
    pump = Pump(work.carry_out, most=3)
    loop = asyncio.create_task(pump.run())
    first = asyncio.create_task(pump.carry_out(["a"]))
    await turns()
    later = [asyncio.create_task(pump.carry_out(batch)) for batch in (["b", "c"], ["d"], ["e", "f"])]
    await turns()
    assert work.batches == [["a"]]
    assert not first.done()
    work.may_end.set()
    await asyncio.gather(first, *later)
    assert work.batches == [["a"], ["b", "c", "d"], ["e", "f"]]
    loop.cancel()


@pytest.mark.asyncio
async def test_a_caller_that_was_ended_leaves_its_batch_and_the_others():
    work = Work()
    pump = Pump(work.carry_out, most=3)
    loop = asyncio.create_task(pump.run())
    gone, stays = (asyncio.create_task(pump.carry_out([name])) for name in "ab")
    await turns()
    gone.cancel()
    work.may_end.set()
    await stays
    assert work.batches == [["a", "b"]]
    loop.cancel()
