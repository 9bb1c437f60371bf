import asyncio

import pytest

from gpu_consumers.tasks import end


@pytest.mark.asyncio
async def test_work_ends_whose_cancel_meets_the_end_of_a_call():
    answered = asyncio.get_running_loop().create_future()

    async def work():
        while True:
            await asyncio.wait_for(answered, 60)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    answered.set_result(None)
    async with asyncio.timeout(10):
        (ended,) = await end([task])
    assert isinstance(ended, asyncio.CancelledError)


@pytest.mark.asyncio
async def test_what_ended_by_itself_is_told():
    async def fail():
        raise ValueError("it broke")

    async def work():
        return 7

    tasks = [asyncio.create_task(fail()), asyncio.create_task(work())]
    await asyncio.wait(tasks)
    error, result = await end(tasks)
    assert (str(error), result) == ("it broke", 7)
