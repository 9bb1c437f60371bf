"""Who is next at a spent budget that several share, against a real Redis."""

from collections import defaultdict
from dataclasses import replace

import pytest
from redis.exceptions import ResponseError

from streams.budgets import Ending, Paid, Refused
from streams.settings import Bucket
from tests.support.ledger import ask, emptied, filled, levels, made, pass_time, redis_of, still
from topics import keys
from topics.records import Priority

pytestmark = [pytest.mark.asyncio, pytest.mark.alone]  # a turn that a busy machine delays counts as given up

RATE = 100.0
STEP_S = 0.25
MOST = 20
LOOK = 200
CALM = ("a", "b", "c")
OTHERS = tuple(f"t{n}" for n in range(40))


@pytest.fixture
def url(redis_server):
    return emptied(redis_server, 13)


async def spent(url, **buckets):
    """A pool's budget that binds and is spent, and tenants' that do not bind; settings and a worker's view."""
    sections = {"global_budget": still(1e9), "class_budgets": dict.fromkeys(Priority, still(1e9))}
    sections["pool_budget"] = Bucket(refill_units_per_s=RATE, burst_s=60, warm_up_s=0)
    settings = made(url, **{"tenant_budget": still(1e9), **sections, **buckets})
    budgets = await filled(settings, "flood", "big", *CALM, *OTHERS)
    redis_of(settings).hset(keys.of(settings).bucket("pool", "default"), "level", 0)
    return settings, budgets


def wants(tenant, units, count=1, **fields):
    """Requests of one tenant."""
    return [{"tenant": tenant, "units": units, **fields}] * count


def lines(settings):
    """The keys of all lines."""
    return redis_of(settings).keys("*:line:*")


class Crowd:
    """Tenants that ask, and ask again in turns for what waits, as a worker does; each keeps at most `MOST` waiting."""

    def __init__(self, settings, budgets):
        self.settings, self.budgets = settings, budgets
        self.waiting, self.paid, self.waited_s = defaultdict(list), defaultdict(float), {}
        self.now_s, self.sent = 0.0, 0

    async def step(self, wanted):
        """One look: what comes new, then what waits, one of each queue in turn."""
        self.sent += len(wanted)
        new = [(self.now_s, ask(f"{w['tenant']}-{self.sent}-{n}", **w)) for n, w in enumerate(wanted)]
        batch = [*new, *self._again()]
        answers = await self.budgets.reserve([each for _, each in batch], {})
        for (since_s, each), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Paid):
                self.paid[each.tenant, each.lane] += each.units
                self.waited_s[each.tenant] = self.now_s - since_s
            else:
                self.waiting[each.tenant, each.lane].append((since_s, replace(each, is_back=True)))
        for queue in self.waiting.values():
            queue.sort(key=lambda entry: entry[0])
        gone = [each.id for queue in self.waiting.values() for _, each in queue[MOST:]]
        await self.budgets.finish([Ending(name, "") for name in gone])
        self.waiting = defaultdict(list, {name: queue[:MOST] for name, queue in self.waiting.items()})
        pass_time(self.settings, STEP_S)
        self.now_s += STEP_S

    def _again(self):
        queues = list(self.waiting.values())
        self.waiting = defaultdict(list)
        return [queue[n] for n in range(MOST) for queue in queues if n < len(queue)][:LOOK]

    def served(self, *tenants, lane="high.short"):
        """Cost paid of each."""
        return [self.paid[tenant, lane] for tenant in tenants]


def jain(values):
    return sum(values) ** 2 / (len(values) * sum(x * x for x in values))


async def test_tenants_share_a_spent_budget_however_loud_one_is(url):
    settings, budgets = await spent(url)
    town = Crowd(settings, budgets)
    for _ in range(40):
        calm = [want for name in CALM for want in wants(name, 2.0, 8)]
        await town.step([*wants("flood", 2.0, 30), *calm])
    served = town.served("flood", *CALM)
    assert jain(served) > 0.99
    assert sum(served) > 0.95 * RATE * town.now_s


async def test_requests_of_unlike_size_get_the_same_cost(url):
    settings, budgets = await spent(url)
    town = Crowd(settings, budgets)
    for _ in range(40):
        await town.step([*wants("a", 20.0, 2), *wants("b", 1.0, 40), *wants("c", 5.0, 8)])
    assert jain(town.served(*CALM)) > 0.98


async def test_a_large_request_is_not_kept_waiting_by_small_ones_that_come_later(url):
    settings, budgets = await spent(url)
    town = Crowd(settings, budgets)
    await town.step(wants("big", 500.0))
    for number in range(24):
        await town.step(wants(OTHERS[number], 3.0, 10))
    assert town.waited_s["big"] <= 500 / RATE + STEP_S


async def test_nor_by_small_ones_of_its_own_tenant(url):
    settings, budgets = await spent(url)
    town = Crowd(settings, budgets)
    await town.step(wants("big", 500.0))
    for _ in range(24):
        await town.step(wants("big", 3.0, 10))
        if ("big", "high.short") in town.paid:
            break
    assert town.served("big")[0] >= 500
    assert town.now_s <= 500 / RATE + 2 * STEP_S


async def test_lanes_share_a_spent_budget_by_their_weights(url):
    settings, budgets = await spent(url)
    town = Crowd(settings, budgets)
    low = {"lane": "low.short", "priority": Priority.LOW}
    for _ in range(40):
        await town.step([*wants("a", 2.0, 20), *wants("b", 2.0, 20, **low)])
    (high,), (less,) = town.served("a"), town.served("b", lane="low.short")
    pool = settings.pools["default"]
    assert high / less == pytest.approx(pool.high_weight / pool.low_weight, rel=0.1)


async def test_one_that_does_not_come_back_holds_the_others_up_for_no_longer_than_it_would_have_waited(url):
    settings, budgets = await spent(url)
    assert isinstance((await budgets.reserve([ask("gone", 200.0, tenant="big")], {}))[0], Refused)
    pass_time(settings, 2.0)
    assert isinstance((await budgets.reserve([ask("x", 150.0, tenant="a")], {}))[0], Refused)
    pass_time(settings, 1.0)
    assert isinstance((await budgets.reserve([ask("x", 150.0, tenant="a", is_back=True)], {}))[0], Paid)


async def test_one_that_is_kept_waiting_by_its_own_budget_keeps_no_turn(url):
    settings, budgets = await spent(url, tenant_budgets={"big": Bucket(refill_units_per_s=1.0, burst_s=100)})
    assert (await budgets.reserve([ask("own", 50.0, tenant="big")], {}))[0].facts.level == "pool"
    redis_of(settings).hset(keys.of(settings).bucket("tenant", "big"), "level", -100)
    refused = (await budgets.reserve([ask("own", 50.0, tenant="big", is_back=True)], {}))[0]
    assert refused.facts.level == "tenant"
    assert lines(settings) == []
    pass_time(settings, 0.1)
    assert isinstance((await budgets.reserve([ask("x", 9.0, tenant="a")], {}))[0], Paid)


async def test_one_that_cannot_wait_as_long_keeps_no_turn(url):
    settings, budgets = await spent(url)
    assert isinstance((await budgets.reserve([ask("hasty", 50.0, budget_wait_limit_s=0.1)], {}))[0], Refused)
    assert lines(settings) == []


async def test_a_budget_that_is_not_spent_knows_no_turns(url):
    settings, budgets = await spent(url)
    await budgets.reserve([ask("w", 50.0, tenant="a")], {})
    assert lines(settings) != []
    pass_time(settings, 1.0)
    assert isinstance((await budgets.reserve([ask("w", 50.0, tenant="a", is_back=True)], {}))[0], Paid)
    assert lines(settings) == []
    assert isinstance((await budgets.reserve([ask("x", 9.0, tenant="b")], {}))[0], Paid)


async def test_what_waits_for_two_shared_budgets_keeps_both_turns(url):
    settings, budgets = await spent(url, global_budget=Bucket(refill_units_per_s=RATE, burst_s=60, warm_up_s=0))
    await budgets.reserve([ask("w", 50.0, tenant="big")], {})
    redis_of(settings).hset(keys.of(settings).bucket("global", "all"), "level", -50)
    pass_time(settings, 0.6)
    back = ask("w", 50.0, tenant="big", is_back=True)
    assert (await budgets.reserve([back], {}))[0].facts.level == "global"
    small = [ask(f"s{n}", 3.0, tenant=name) for n, name in enumerate(OTHERS)]
    assert not any(isinstance(answer, Paid) for answer in await budgets.reserve(small, {}))
    pass_time(settings, 0.5)
    assert isinstance((await budgets.reserve([back], {}))[0], Paid)


async def test_a_paced_budget_is_shared_too(url):
    settings, budgets = await spent(
        url, pool_budget=Bucket(refill_units_per_s=RATE, burst_s=60, warm_up_s=0, paced=True)
    )
    town = Crowd(settings, budgets)
    for _ in range(40):
        await town.step([*wants("flood", 2.0, 30), *wants("a", 2.0, 10), *wants("b", 2.0, 10)])
    served = town.served("flood", "a", "b")
    assert jain(served) > 0.98
    assert sum(served) > 0.9 * RATE * town.now_s


@pytest.mark.parametrize("part", ["", ":given"])
async def test_a_line_of_another_type_is_found_before_anything_is_written(url, part):
    settings, budgets = await spent(url)
    await budgets.reserve([ask("w", 50.0, tenant="a")], {})
    key = keys.of(settings).ledger().replace("ledger", f"line:pool:default{part}")
    redis_of(settings).delete(key)
    redis_of(settings).set(key, "no line")
    before = levels(settings, "pool:default", "tenant:b")
    pass_time(settings, 2.0)
    with pytest.raises(ResponseError):
        await budgets.reserve([ask("x", 9.0, tenant="b")], {})
    assert levels(settings, "pool:default", "tenant:b") == before
