"""A Redis that freezes or ends under admission: who waits, for how long, and how it comes back."""

import asyncio
import contextlib
import time

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from streams.budgets import BudgetsUnavailable
from tests.support.own_redis import Ledger, freeze, own_redis, thaw
from topics import keys

__all__ = ["own_redis"]

pytestmark = [pytest.mark.asyncio, pytest.mark.alone]
TIMEOUT_S = 0.25
PROBE_S = 0.5


@pytest_asyncio.fixture
async def ledger(settings, own_redis):
    made = Ledger(settings, own_redis, timeout_s=TIMEOUT_S, probe_s=PROBE_S)
    await made.fill()
    await made.budgets.reserve([made.ask("before")], {})
    return made


async def refused_after_s(ledger, name):
    """How long it takes until a reservation raises."""
    started_s = time.monotonic()
    with pytest.raises(BudgetsUnavailable):
        await ledger.budgets.reserve([ledger.ask(name)], {})
    return time.monotonic() - started_s


@contextlib.asynccontextmanager
async def looked_after(ledger):
    task = asyncio.ensure_future(ledger.rebuild.run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition, limit_s=20.0):
    """Seconds until it holds."""
    started_s = time.monotonic()
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - others know nothing of this wait
            await asyncio.sleep(0.01)
    return time.monotonic() - started_s


def is_degraded():
    return REGISTRY.get_sample_value("rampmeter_streams_redis_degraded") == 1


async def test_a_frozen_redis_holds_the_first_call_for_the_timeout_and_the_others_not_at_all(ledger, own_redis):
    freeze(own_redis)
    first_s = await refused_after_s(ledger, "first")
    assert 1.0 <= first_s / TIMEOUT_S < 3.0
    assert (ledger.breaker.is_open, is_degraded()) == (True, True)
    others_s = [await refused_after_s(ledger, f"other{n}") for n in range(50)]
    assert sum(others_s) / TIMEOUT_S < 1.0


async def test_calls_that_were_under_way_when_it_froze_are_bounded_too(ledger, own_redis):
    freeze(own_redis)
    waits_s = await asyncio.gather(*(refused_after_s(ledger, f"n{n}") for n in range(10)))
    assert max(waits_s) / TIMEOUT_S < 3.0


async def test_probes_of_a_frozen_redis_do_not_let_admission_wait_again(ledger, own_redis):
    freeze(own_redis)
    await refused_after_s(ledger, "first")
    async with looked_after(ledger):
        ends_s = time.monotonic() + 5 * PROBE_S
        longest_s = 0.0
        while time.monotonic() < ends_s:
            longest_s = max(longest_s, await refused_after_s(ledger, f"at {time.monotonic()}"))
            await asyncio.sleep(0.01)
    assert longest_s / TIMEOUT_S < 0.5


async def test_a_redis_that_goes_on_is_used_again_within_four_probes(ledger, own_redis):
    freeze(own_redis)
    await refused_after_s(ledger, "first")
    async with looked_after(ledger):
        await asyncio.sleep(3 * PROBE_S)
        thaw(own_redis)
        back_s = await until(lambda: not ledger.breaker.is_open)
    assert back_s / PROBE_S < 4.0
    assert not is_degraded()
    assert await ledger.budgets.reserve([ledger.ask("after")], {})


async def test_an_idle_worker_notices_an_outage_by_its_probe(ledger, own_redis):
    async with looked_after(ledger):
        freeze(own_redis)
        await until(lambda: ledger.breaker.is_open)
        thaw(own_redis)
        await until(lambda: not ledger.breaker.is_open)


async def test_a_killed_redis_is_noticed_at_once_and_a_new_one_is_filled_within_four_probes(ledger, own_redis):
    ledger.log()
    before, mark = ledger.levels(), keys.of(ledger.settings).ledger()
    own_redis.stop()
    assert await refused_after_s(ledger, "first") / TIMEOUT_S < 3.0
    assert ledger.breaker.is_open
    async with looked_after(ledger):
        own_redis.start()
        back_s = await until(lambda: not ledger.breaker.is_open and ledger.sync.exists(mark))
    assert back_s / PROBE_S < 4.0
    touched = {name: units for name, units in before.items() if name != "tenant:blue"}
    assert {name: ledger.levels()[name] for name in touched} == pytest.approx(touched, abs=0.01)
