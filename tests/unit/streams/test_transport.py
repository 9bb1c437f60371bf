"""The hand-over of records: in place when nothing waits, as Faust does it otherwise."""

import asyncio

import pytest
from mode.utils.locks import Event

from streams import transport

pytestmark = pytest.mark.asyncio


@pytest.fixture
def consumer():
    """Only what waiting needs; Faust builds the rest from a running application."""
    made = object.__new__(transport.Consumer)
    made._stopped, made._crashed, made._loop = Event(), Event(), None
    return made


async def _tasks_during(awaitable):
    before = asyncio.all_tasks()
    result = await awaitable
    return result, asyncio.all_tasks() - before


async def _at_once(value):
    return value


async def _after(event, seen):
    try:
        await event.wait()
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise
    await asyncio.sleep(0)
    seen.append("put")
    return "put"


async def test_a_hand_over_that_need_not_wait_takes_no_task_and_no_turn_of_the_loop(consumer):
    suspended, turns = asyncio.Event(), []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    found, tasks = await _tasks_during(consumer.wait_first(_at_once("put"), suspended.wait()))
    assert (["put"], False, set(), []) == (found.results, found.stopped, tasks, turns)


async def test_a_hand_over_that_waits_is_carried_on_where_it_stopped(consumer):
    room, seen = asyncio.Event(), []
    asyncio.get_running_loop().call_later(0.01, room.set)
    found = await consumer.wait_first(_after(room, seen), asyncio.Event().wait())
    assert ["put"] == found.results == seen


async def test_a_suspended_flow_ends_a_hand_over_that_waits(consumer):
    suspended, seen = asyncio.Event(), []
    asyncio.get_running_loop().call_later(0.01, suspended.set)
    found = await consumer.wait_first(_after(asyncio.Event(), seen), suspended.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (found.results, seen) == ([True], ["cancelled"])


async def test_a_stop_ends_a_hand_over_that_waits(consumer):
    seen = []
    asyncio.get_running_loop().call_later(0.01, consumer._stopped.set)
    found = await consumer.wait_first(_after(asyncio.Event(), seen), asyncio.Event().wait())
    assert found.stopped


async def test_an_error_of_the_hand_over_is_the_callers(consumer):
    async def fail(*waits):
        for wait in waits:
            await wait
        raise ValueError

    for waits in ((), (asyncio.sleep(0),)):
        with pytest.raises(ValueError):  # noqa: PT011 - the one raised above
            await consumer.wait_first(fail(*waits), asyncio.Event().wait())
