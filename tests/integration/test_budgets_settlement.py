"""How the ledger settles, ends, lapses and comes back, against a real Redis."""

import asyncio

import pytest

from streams.budgets import BudgetsUnavailable, Ending, Paid, Redelivered, Refused, Settled
from streams.policy.sharing import Capacity
from streams.settings import Bucket, Degrade
from tests.support.ledger import ALL, ask, charge, emptied, filled, levels, made, opened, pass_time, redis_of, server_s
from tests.support.own_redis import freeze, own_redis, thaw  # noqa: F401 - a fixture
from topics import keys

pytestmark = pytest.mark.asyncio
ROOM = {"default": Capacity(units_per_s=1.0, units=20.0)}


@pytest.fixture
def url(redis_server):
    return emptied(redis_server, 15)


@pytest.fixture
def settings(url):
    return made(url)


def leftovers(settings):
    """What is still counted or leased."""
    redis = redis_of(settings)
    return redis.hlen(keys.of(settings).shares("default")), redis.zcard(keys.of(settings).expiries())


async def test_settling_gives_back_what_was_not_used_once(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0)], {})
    assert await budgets.settle([charge("a", 20.0)]) == [Settled("settled", 40.0)]
    assert levels(settings, *ALL) == [980, 480, 80, 1980]
    assert await budgets.settle([charge("a", 20.0, attempt=2)]) == [Settled("repeat", 0.0)]
    assert levels(settings, *ALL) == [980, 480, 80, 1980]
    assert leftovers(settings) == (0, 0)


async def test_the_same_id_twice_in_one_settlement_is_settled_once(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0)], {})
    first, second = await budgets.settle([charge("a", 20.0), charge("a", 20.0)])
    assert [first.result, second.result] == ["settled", "repeat"]
    assert levels(settings, "tenant:acme") == [80]


async def test_a_failed_attempt_is_charged_once_and_its_reservation_stays(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 30.0)], {})
    part = charge("a", 5.0, partial=True)
    assert await budgets.settle([part]) == [Settled("partial", -5.0)]
    assert await budgets.settle([part]) == [Settled("repeat", 0.0)]
    assert levels(settings, "tenant:acme") == [65]
    open_units = (await budgets.reserve([ask("b", 1.0)], {}))[0].facts.share.mine_open_units
    assert open_units == 30
    assert await budgets.settle([charge("a", 5.0, attempt=2, partial=True), charge("a", 20.0, attempt=3)]) == [
        Settled("partial", -5.0),
        Settled("settled", 10.0),
    ]
    assert levels(settings, "tenant:acme") == [69]


async def test_a_charge_without_reservation_is_taken_from_the_budgets_that_it_names_once(settings):
    budgets = await filled(settings)
    lost = charge("nobody", 25.0, reserved_units=10.0)
    assert await budgets.settle([lost]) == [Settled("unknown", -15.0)]
    assert await budgets.settle([lost]) == [Settled("repeat", 0.0)]
    assert levels(settings, *ALL) == [985, 485, 85, 1985]


async def test_a_refund_to_a_bucket_that_nobody_knows_makes_no_credit(settings):
    budgets = await filled(settings)
    await budgets.settle([charge("nobody", 5.0, reserved_units=50.0, tenant="stranger")])
    assert levels(settings, "tenant:stranger") == [0]


async def test_settled_work_is_not_admitted_again_when_its_record_comes_back(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0, offset=7)], {})
    await budgets.settle([charge("a", 20.0)])
    assert (await budgets.reserve([ask("a", 60.0, offset=7)], {}))[0].state == "settled"


async def test_a_debt_is_paid_before_anyone_else_is_admitted(url):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=0.1, burst_s=1000))
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 100.0)], {})
    await budgets.settle([charge("a", 150.0)])
    standing = (await budgets.reserve([ask("b", 10.0)], {}))[0]
    assert standing.facts.budget_wait_s == pytest.approx(600, abs=10)


async def test_a_debt_outlives_every_expiry(url):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=1, burst_s=10))
    budgets = await filled(settings)
    await budgets.settle([charge("a", 500_000.0, reserved_units=0.0)])
    lives_s = redis_of(settings).ttl(keys.of(settings).bucket("tenant", "acme"))
    assert lives_s > 500_000


async def test_a_refund_never_fills_beyond_the_cap(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0)], {})
    redis_of(settings).hset(keys.of(settings).bucket("tenant", "acme"), "level", "90")
    await budgets.settle([charge("a", 0.0)])
    assert levels(settings, "tenant:acme") == [100]


async def test_a_request_that_ends_without_running_gives_all_back(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("held", 60.0, offset=7), ask("waits", 60.0, offset=8)], {})
    await budgets.finish([Ending("held", "cancelled"), Ending("waits", "rejected"), Ending("unseen", "rejected")])
    assert levels(settings, *ALL) == [1000, 500, 100, 2000]
    assert leftovers(settings) == (0, 0)
    assert await budgets.reserve([ask("held", 60.0, offset=7)], {}) == [
        Redelivered("finished", pytest.approx(server_s(settings), abs=5), "cancelled", pytest.approx(0, abs=5))
    ]


async def test_work_that_ran_though_it_was_ended_is_charged_in_full(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0)], {})
    await budgets.finish([Ending("a", "cancelled")])
    assert await budgets.settle([charge("a", 25.0, reserved_units=60.0)]) == [Settled("settled", -25.0)]
    assert levels(settings, "tenant:acme") == [75]


async def test_an_ending_does_not_undo_a_settlement(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0)], {})
    await budgets.settle([charge("a", 20.0)])
    await budgets.finish([Ending("a", "cancelled")])
    assert levels(settings, "tenant:acme") == [80]


async def test_a_reservation_that_nobody_renews_lapses_and_a_late_settlement_charges_all(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0)], {})
    pass_time(settings, settings.dedupe_window_s + 1)
    await budgets.reserve([ask("b", 1.0)], {})
    assert levels(settings, *ALL) == [999, 499, 99, 1999]
    assert await budgets.settle([charge("a", 25.0, reserved_units=60.0)]) == [Settled("settled", -25.0)]
    assert levels(settings, *ALL) == [974, 474, 74, 1974]
    assert await budgets.settle([charge("a", 25.0)]) == [Settled("repeat", 0.0)]


async def test_a_renewed_reservation_does_not_lapse_and_a_settled_one_is_not_renewed(settings):
    budgets, redis = await filled(settings), redis_of(settings)
    await budgets.reserve([ask("a", 60.0), ask("b", 10.0)], {})
    await budgets.settle([charge("b", 10.0)])
    pass_time(settings, settings.dedupe_window_s - 1)
    until_s = server_s(settings) + settings.dedupe_window_s
    redis.zadd(keys.of(settings).expiries(), {"a": until_s, "b": until_s}, xx=True, gt=True)
    pass_time(settings, 10)
    await budgets.reserve([ask("c", 1.0)], {})
    assert levels(settings, "tenant:acme") == [29]
    assert redis.zscore(keys.of(settings).expiries(), "b") is None


async def test_a_lapsed_id_is_carried_on_for_its_record_and_free_for_another(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 10.0, offset=7), ask("b", 10.0, offset=8)], {})
    pass_time(settings, settings.dedupe_window_s + 1)
    mine, other = await budgets.reserve([ask("a", 10.0, offset=7), ask("b", 10.0, offset=9)], {})
    assert mine.state == "reserved"
    assert isinstance(other, Paid)
    assert redis_of(settings).ttl(keys.of(settings).reservation("b")) == -1


async def test_what_waits_and_never_asks_again_stops_counting(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask(f"f{n}", 10.0) for n in range(4)], ROOM)
    pass_time(settings, settings.dedupe_window_s + 1)
    share = (await budgets.reserve([ask("x", 10.0)], ROOM))[0].facts.share
    assert (share.mine_waiting_units, share.mine_open_units, share.lane_open_requests) == (0, 0, 0)


async def test_lapses_are_collected_in_bounded_portions(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask(f"r{n}", 1.0) for n in range(50)], {})
    pass_time(settings, settings.dedupe_window_s + 1)
    left = []
    for n in range(4):
        await budgets.reserve([ask(f"s{n}", 1.0)], {})
        left.append(redis_of(settings).zcount(keys.of(settings).expiries(), "-inf", server_s(settings)))
    assert left == [29, 8, 0, 0]


async def test_memory_of_a_finished_id_ends_with_the_dedupe_window(settings):
    budgets, redis = await filled(settings), redis_of(settings)
    await budgets.reserve([ask("s", 10.0), ask("o", 10.0)], {})
    await budgets.settle([charge("s", 10.0)])
    await budgets.finish([Ending("f", "")])
    window_s = pytest.approx(settings.dedupe_window_s, abs=5)
    assert [redis.ttl(keys.of(settings).reservation(name)) for name in "sf"] == [window_s, window_s]
    lives_s = redis.ttl(keys.of(settings).reservation("o"))
    assert lives_s == -1, "what holds budget is remembered until it gave it back"


async def test_restored_levels_go_on_from_where_they_were(url):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=1, burst_s=1000, warm_up_s=500))
    budgets = opened(settings)
    now_s = server_s(settings)
    await budgets.restore({"tenant:acme": (-50.0, now_s - 100), "tenant:ahead": (5.0, now_s + 9999)})
    await budgets.restore({})
    await budgets.settle([charge("x", 1.0, reserved_units=1.0), charge("y", 1.0, reserved_units=1.0, tenant="ahead")])
    found = levels(settings, "tenant:acme", "tenant:ahead")
    assert found == [pytest.approx(50, abs=3), pytest.approx(5, abs=3)]


async def test_restoring_keeps_what_is_newer(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 30.0)], {})
    await budgets.restore({"tenant:acme": (1.0, server_s(settings) - 60)})
    assert levels(settings, "tenant:acme") == [70]


async def test_more_buckets_than_fit_in_one_call_are_restored_before_the_mark(settings):
    budgets = opened(settings)
    names = [f"tenant:t{n}" for n in range(1200)]
    await budgets.restore({name: (7.0, server_s(settings)) for name in names})
    assert set(levels(settings, *names[::100], names[-1])) == {7}
    await budgets.ping()
    assert not budgets.is_lost


async def test_after_a_flush_the_balances_are_back_but_for_what_was_open(settings):
    budgets, redis = await filled(settings), redis_of(settings)
    await budgets.reserve([ask("a", 30.0), ask("b", 20.0)], {})
    known = budgets.take_balances()
    redis.flushdb()
    await budgets.ping()
    assert budgets.is_lost
    waiting = asyncio.create_task(budgets.settle([charge("a", 10.0, reserved_units=30.0)]))
    await asyncio.sleep(0)
    await budgets.restore({name: (level, known.at_s) for name, level in known.levels.items()})
    assert await waiting == [Settled("unknown", 20.0)]
    assert levels(settings, *ALL) == [970, 470, 70, 1970]
    assert not budgets.is_lost
    assert isinstance((await budgets.reserve([ask("c", 70.0)], {}))[0], Paid)


async def test_nothing_is_charged_or_taken_by_a_memory_that_is_gone(settings):
    budgets, redis = await filled(settings), redis_of(settings)
    await budgets.ping()
    before = budgets.memory
    assert await budgets.try_settle([charge("a", 10.0)], before) == [Settled("unknown", 0.0)]
    redis.flushdb()
    await opened(settings).restore({"tenant:acme": (70.0, server_s(settings))})
    with pytest.raises(BudgetsUnavailable) as caught:
        await budgets.reserve([ask("b", 30.0)], {}, before)
    assert caught.value.reason == "lost"
    assert await budgets.try_settle([charge("a", 10.0)], before) is None
    assert levels(settings, "tenant:acme") == [70]
    await budgets.ping()
    now = await budgets.remembered()
    assert now.mark != before.mark
    assert before.since_s < now.since_s <= server_s(settings)
    assert await budgets.try_settle([charge("b", 10.0)], now) == [Settled("unknown", 0.0)]


async def test_admission_is_told_within_the_timeout_that_redis_is_away_and_settlements_wait(own_redis):  # noqa: F811
    settings = made(own_redis.url)
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 10.0)], {})
    await asyncio.to_thread(own_redis.stop)
    with pytest.raises(BudgetsUnavailable):
        await budgets.reserve([ask("b", 10.0)], {})
    with pytest.raises(BudgetsUnavailable) as caught:
        await budgets.reserve([ask("b", 10.0)], {})
    assert caught.value.reason == "open"
    settling = asyncio.create_task(budgets.settle([charge("a", 4.0)]))
    await asyncio.wait((settling,), timeout=0.5)
    assert not settling.done()
    await asyncio.to_thread(own_redis.start)
    while budgets._breaker.is_open:
        try:
            await budgets.ping()
        except BudgetsUnavailable:
            await asyncio.sleep(0.05)
    assert budgets.is_lost
    await budgets.restore({"tenant:acme": (90.0, server_s(settings))})
    assert (await asyncio.wait_for(settling, 20))[0].result == "unknown"
    assert levels(settings, "tenant:acme") == [96]


async def test_an_answer_that_comes_too_late_reaches_nobody_else(own_redis):  # noqa: F811
    settings = made(own_redis.url, degrade=Degrade(timeout_s=0.25))
    budgets = await filled(settings)
    freeze(own_redis)
    with pytest.raises(BudgetsUnavailable) as caught:
        await budgets.reserve([ask("late", 60.0, offset=7)], {})
    assert caught.value.reason == "slow"
    late = list(budgets._late)
    cancelled = asyncio.create_task(budgets.settle([charge("x", 1.0, reserved_units=1.0)]))
    await asyncio.sleep(0)
    cancelled.cancel()
    thaw(own_redis)
    await budgets.ping()
    await asyncio.gather(*late)
    first, second = await budgets.reserve([ask("b", 60.0), ask("late", 60.0, offset=7)], {})
    assert isinstance(first, Refused)
    assert second.state == "reserved", "it was reserved though nobody heard of it"
    assert levels(settings, "tenant:acme") == [40]


async def test_an_end_leaves_alone_what_another_run_of_the_record_has_reserved(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0, offset=7)], {})
    assert await budgets.finish([Ending("a", "rejected", also_reserved=False)]) == [False]
    assert (await budgets.reserve([ask("a", 60.0, offset=7)], {}))[0].state == "reserved"
    assert await budgets.finish([Ending("a", "gone")]) == [True]
