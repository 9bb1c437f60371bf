"""Whether the ledger's books agree is seen in a real Redis, also when they don't."""

import pytest

from streams import metrics
from streams.budgets import BudgetsUnavailable
from streams.drift import Drift
from streams.policy.sharing import Capacity
from tests.support.ledger import ask, charge, emptied, filled, made, opened, pass_time, redis_of
from topics import keys

pytestmark = pytest.mark.asyncio
POOLS = ("default", "cpu")


@pytest.fixture
def settings(redis_server):
    return made(emptied(redis_server, 14))


async def test_what_is_open_is_what_requests_hold(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0), ask("b", 5.0, lane="low.long"), ask("c", 7.0, pool="cpu")], {})
    await budgets.reserve([ask("waits", 30.0)], {"default": Capacity(units_per_s=1.0, units=1.0)})
    assert await budgets.drift(POOLS, 10) == {"default": 0.0, "cpu": 0.0}
    await budgets.settle([charge("a", 20.0)])
    assert await budgets.drift(POOLS, 10) == {"default": 0.0, "cpu": 0.0}


async def test_a_request_that_redis_forgot_stays_open_for_ever_and_is_seen(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0), ask("b", 5.0)], {})
    redis_of(settings).delete(keys.of(settings).reservation("a"))
    assert await budgets.drift(POOLS, 10) == {"default": 60.0, "cpu": 0.0}
    pass_time(settings, settings.dedupe_window_s + 1)
    await budgets.reserve([ask("c", 1.0)], {})
    assert await budgets.drift(POOLS, 10) == {"default": 60.0, "cpu": 0.0}


async def test_shares_that_redis_forgot_are_seen(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0)], {})
    redis_of(settings).delete(keys.of(settings).shares("default"))
    assert await budgets.drift(POOLS, 10) == {"default": -60.0, "cpu": 0.0}


async def test_of_more_requests_than_may_be_read_nothing_is_known(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask(f"r{n}", 1.0) for n in range(3)], {})
    assert await budgets.drift(POOLS, 3) == {"default": 0.0, "cpu": 0.0}
    assert await budgets.drift(POOLS, 2) == {}


async def test_a_lost_ledger_has_no_drift(settings):
    with pytest.raises(BudgetsUnavailable):
        await opened(settings).drift(POOLS, 10)


async def test_only_the_worker_that_leads_shows_it_and_no_longer_than_it_knows(settings):
    budgets, leads = await filled(settings), [True]
    drift = Drift(POOLS, budgets, lambda: leads[0])
    await budgets.reserve([ask("a", 60.0)], {})
    redis_of(settings).delete(keys.of(settings).shares("default"))
    await drift.step()
    assert shown() == {"default": -60.0, "cpu": 0.0}
    redis_of(settings).delete(keys.of(settings).ledger())
    await drift.step()
    assert shown() == {}
    await filled(settings)
    leads[0] = False
    await drift.step()
    assert shown() == {}


def shown():
    (family,) = metrics.LEDGER_DRIFT.collect()
    return {sample.labels["pool"]: sample.value for sample in family.samples}
