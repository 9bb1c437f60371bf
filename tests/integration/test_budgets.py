"""The ledger's reservations against a real Redis."""

import asyncio

import pytest

from streams.budgets import BudgetsUnavailable, Closed, Ending, Paid, Redelivered, Refused, Repeated
from streams.ledger_wire import hold_s
from streams.policy.sharing import Capacity
from streams.settings import Bucket
from tests.support.ledger import ALL, ask, charge, emptied, filled, levels, made, opened, pass_time, redis_of, still
from topics import keys
from topics.records import Priority

pytestmark = pytest.mark.asyncio


@pytest.fixture
def url(redis_server):
    return emptied(redis_server, 15)


@pytest.fixture
def settings(url):
    return made(url)


def kinds(standings):
    return [type(standing) for standing in standings]


async def test_an_ask_is_paid_on_every_level(settings):
    budgets = await filled(settings)
    assert kinds(await budgets.reserve([ask("a", 30.0)], {})) == [Paid]
    assert levels(settings, *ALL) == [970, 470, 70, 1970]


async def test_a_refused_ask_changes_no_level(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 80.0)], {})
    before = levels(settings, *ALL)
    short, never = await budgets.reserve([ask("b", 30.0), ask("c", 101.0)], {})
    assert isinstance(short, Refused)
    assert (short.facts.level, short.facts.never_cap_units) == ("tenant", None)
    assert (never.facts.level, never.facts.never_cap_units) == ("tenant", 100.0)
    assert levels(settings, *ALL) == before


async def test_the_level_that_waits_longest_is_named(url):
    settings = made(
        url,
        global_budget=Bucket(refill_units_per_s=100, burst_s=1),
        pool_budget=Bucket(refill_units_per_s=10, burst_s=10),
        tenant_budget=Bucket(refill_units_per_s=50, burst_s=2),
    )
    budgets = await filled(settings)
    paid, short = await budgets.reserve([ask("a", 100.0), ask("b", 100.0)], {})
    assert isinstance(paid, Paid)
    assert short.facts.level == "pool"


async def test_the_wait_until_it_can_be_paid_is_exact(url):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=0.04, burst_s=1000))
    budgets = await filled(settings)
    assert kinds(await budgets.reserve([ask("a", 40.0)], {})) == [Paid]
    wait_s = (await budgets.reserve([ask("b", 20.0)], {}))[0].facts.budget_wait_s
    assert wait_s == pytest.approx(500, abs=5)
    pass_time(settings, wait_s - 30)
    assert kinds(await budgets.reserve([ask("b", 20.0)], {})) == [Refused]
    pass_time(settings, 30)
    assert kinds(await budgets.reserve([ask("b", 20.0)], {})) == [Paid]


@pytest.mark.parametrize(("age_s", "units"), [(0, 10), (0, 60), (60, 10), (60, 60), (60, 200), (300, 100)])
async def test_the_wait_is_exact_while_a_bucket_warms_up(url, age_s, units):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=1, burst_s=1000, warm_up_s=100))
    budgets = await filled(settings)
    assert kinds(await budgets.reserve([ask("born", 1.0, tenant="new")], {})) == [Refused]
    pass_time(settings, age_s)
    earned = age_s**2 / 200 if age_s < 100 else age_s - 50
    await budgets.settle([charge("spend", earned, tenant="new", reserved_units=0.0)])
    wait_s = (await budgets.reserve([ask("a", units, tenant="new")], {}))[0].facts.budget_wait_s
    until_s = age_s + wait_s
    at_the_end = until_s**2 / 200 if until_s < 100 else until_s - 50
    assert at_the_end - earned == pytest.approx(units, abs=1.5)
    pass_time(settings, wait_s - 3)
    assert kinds(await budgets.reserve([ask("a", units, tenant="new")], {})) == [Refused]
    pass_time(settings, 3)
    assert kinds(await budgets.reserve([ask("a", units, tenant="new")], {})) == [Paid]


async def test_a_new_bucket_starts_at_zero_even_if_its_first_ask_is_refused(url):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=1, burst_s=1000, warm_up_s=100))
    budgets = await filled(settings)
    assert kinds(await budgets.reserve([ask("a", 1.0, tenant="new")], {})) == [Refused]
    assert levels(settings, "tenant:new") == [0]


async def test_a_paced_bucket_saves_nothing_and_starts_the_next_when_the_ones_before_have_flowed_off(url):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=0.1, burst_s=1000, warm_up_s=0, paced=True))
    budgets = await filled(settings)
    pass_time(settings, 500)
    paid, short = await budgets.reserve([ask("a", 50.0), ask("b", 1.0)], {})
    assert isinstance(paid, Paid)
    assert short.facts.budget_wait_s == pytest.approx(500, abs=10)
    pass_time(settings, 500)
    assert kinds(await budgets.reserve([ask("b", 1.0)], {})) == [Paid]


async def test_a_refund_to_a_paced_bucket_saves_nothing_either(url):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=0.1, burst_s=1000, warm_up_s=0, paced=True))
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 50.0)], {})
    pass_time(settings, 400)
    await budgets.settle([charge("a", 1.0)])
    assert levels(settings, "tenant:acme") == [0.025], "what flows in between two looks"


async def test_a_batch_cannot_spend_more_than_there_is(settings):
    budgets = await filled(settings)
    answers = await budgets.reserve([ask(f"r{n}", 30.0) for n in range(5)], {})
    assert kinds(answers) == [Paid, Paid, Paid, Refused, Refused]


async def test_many_clients_at_once_never_spend_more_than_the_cap(settings):
    tenants = [f"t{n}" for n in range(3)]
    workers = [await filled(settings, *tenants), *(opened(settings) for _ in range(7))]

    async def spend(worker, number):
        paid = 0
        for turn in range(10):
            asks = [ask(f"{number}-{turn}-{n}", 7.0, tenant=f"t{n % 3}") for n in range(10)]
            paid += kinds(await worker.reserve(asks, {})).count(Paid)
        return paid

    paid = sum(await asyncio.gather(*(spend(worker, number) for number, worker in enumerate(workers))))
    assert paid == 3 * (100 // 7)
    spent = paid * 7
    assert levels(settings, *ALL[:2], *(f"tenant:{name}" for name in tenants)) == [1000 - spent, 500 - spent, 2, 2, 2]


async def test_a_pool_that_is_spent_leaves_the_other_budgets_alone(settings):
    budgets = await filled(settings, "new", *(f"t{n}" for n in range(5)))
    await budgets.reserve([ask(f"r{n}", 100.0, tenant=f"t{n}") for n in range(5)], {})
    assert (await budgets.reserve([ask("x", 50.0, tenant="new")], {}))[0].facts.level == "pool"
    assert kinds(await budgets.reserve([ask("y", 50.0, tenant="new", pool="cpu")], {})) == [Paid]
    assert levels(settings, "tenant:new") == [50]


async def test_a_class_has_a_budget_of_its_own(url):
    classes = {Priority.HIGH: still(50), Priority.MEDIUM: still(2000), Priority.LOW: still(2000)}
    settings = made(url, class_budgets=classes)
    budgets = await filled(settings)
    paid, short, other = await budgets.reserve(
        [ask("a", 40.0), ask("b", 20.0), ask("c", 20.0, priority=Priority.LOW, lane="low.short")], {}
    )
    assert kinds([paid, short, other]) == [Paid, Refused, Paid]
    assert short.facts.level == "class"


async def test_a_redelivered_record_is_not_charged_again(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 30.0, offset=7)], {})
    again = (await budgets.reserve([ask("a", 30.0, offset=7)], {}))[0]
    assert isinstance(again, Redelivered)
    assert again.state == "reserved"
    assert levels(settings, "tenant:acme") == [70]


async def test_another_record_with_the_same_id_is_a_repeat_that_knows_where_the_first_is_answered(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 30.0, offset=7, reply_topic="replies.first")], {})
    repeat = (await budgets.reserve([ask("a", 30.0, offset=8, reply_topic="replies.second")], {}))[0]
    assert isinstance(repeat, Repeated)
    assert (repeat.reply_topic, repeat.may_be_answered) == ("replies.first", False)
    assert levels(settings, "tenant:acme") == [70]


async def test_two_records_of_one_id_in_one_batch_are_charged_once(settings):
    budgets = await filled(settings)
    answers = await budgets.reserve([ask("a", 30.0, offset=7), ask("a", 30.0, offset=8)], {})
    assert kinds(answers) == [Paid, Repeated]
    assert levels(settings, "tenant:acme") == [70]


async def test_what_waits_may_be_paid_later_and_its_repeat_stays_a_repeat(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("spend", 100.0)], {})
    assert kinds(await budgets.reserve([ask("a", 50.0, offset=7)], {})) == [Refused]
    assert kinds(await budgets.reserve([ask("a", 50.0, offset=8)], {})) == [Repeated]
    await budgets.settle([charge("spend", 0.0)])
    assert kinds(await budgets.reserve([ask("a", 50.0, offset=7)], {})) == [Paid]


async def test_what_was_rejected_stays_rejected_for_its_record_with_its_reason(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 500.0, offset=7)], {})
    await budgets.finish([Ending("a", '{"why":"so"}')])
    again = (await budgets.reserve([ask("a", 50.0, offset=7)], {}))[0]
    assert (again.state, again.why) == ("finished", '{"why":"so"}')
    repeat = (await budgets.reserve([ask("a", 50.0, offset=8)], {}))[0]
    assert repeat.may_be_answered


async def test_a_refusal_is_remembered_without_any_budget(settings):
    budgets = opened(settings)
    await budgets.restore({})
    closed = ask("a", 0.0, offset=7, tenant="", pool="", closed=True)
    assert await budgets.reserve([closed], {}) == [Closed()]
    assert (await budgets.reserve([closed], {}))[0].state == "finished"
    assert kinds(await budgets.reserve([ask("a", 5.0, offset=8)], {})) == [Repeated]
    assert levels(settings, *ALL) == [None, None, None, None]


async def test_nothing_asked_is_nothing_answered(settings):
    budgets = opened(settings)
    assert await budgets.reserve([], {}) == []
    assert await budgets.settle([]) == []
    await budgets.finish([])


async def test_the_scripts_come_back_after_a_script_flush(settings):
    budgets = await filled(settings)
    redis = redis_of(settings)
    for call in (
        lambda: budgets.reserve([ask("a", 10.0)], {}),
        lambda: budgets.settle([charge("a", 1.0)]),
        lambda: budgets.finish([Ending("b", "")]),
        lambda: budgets.promotable(["a"]),
        lambda: budgets.restore({}),
    ):
        redis.script_flush()
        await call()
    assert levels(settings, "tenant:acme") == [99]


async def test_an_id_is_promoted_once_and_never_when_it_is_claimed(settings):
    budgets = opened(settings)
    redis_of(settings).hset(keys.of(settings).claim("b"), "state", "running")
    assert await budgets.promotable(["a", "b", "a"]) == [True, False, False]
    assert await budgets.promotable(["a", "b"]) == [False, False]


async def test_a_tenant_may_have_its_own_budget(url):
    settings = made(url, tenant_budgets={"big": still(400)})
    budgets = await filled(settings, "big", "small")
    paid, never = await budgets.reserve([ask("a", 300.0, tenant="big"), ask("b", 300.0, tenant="small")], {})
    assert isinstance(paid, Paid)
    assert never.facts.never_cap_units == 100


async def test_a_limit_changed_live_cuts_the_level_and_keeps_the_debt(settings):
    budgets = await filled(settings, "acme", "indebted")
    await budgets.settle([charge("x", 300.0, tenant="indebted", reserved_units=0.0)])
    for tenant in ("acme", "indebted"):
        budgets._limits.set("tenant", tenant, Bucket(refill_units_per_s=1, burst_s=20, warm_up_s=0))
    cut, short = await budgets.reserve([ask("a", 15.0), ask("b", 15.0, tenant="indebted")], {})
    assert isinstance(cut, Paid)
    assert levels(settings, "tenant:acme") == [5]
    assert short.facts.budget_wait_s == pytest.approx(200 + 15, abs=3)
    budgets._limits.set("tenant", "acme", None)
    assert (await budgets.reserve([ask("c", 90.0)], {}))[0].facts.never_cap_units is None


async def test_a_limit_that_is_raised_for_one_who_waits_lets_him_in(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("spend", 100.0)], {})
    assert kinds(await budgets.reserve([ask("a", 50.0)], {})) == [Refused]
    budgets._limits.set("tenant", "acme", Bucket(refill_units_per_s=1, burst_s=100, warm_up_s=0))
    assert (await budgets.reserve([ask("a", 50.0)], {}))[0].facts.budget_wait_s == pytest.approx(50, abs=3)
    pass_time(settings, 50)
    assert kinds(await budgets.reserve([ask("a", 50.0)], {})) == [Paid]


@pytest.mark.parametrize(("step_s", "wait_s"), [(-4, 14), (-3600, 10)])
async def test_a_server_clock_that_steps_back_earns_nothing_twice_unless_it_is_another_clock(url, step_s, wait_s):
    settings = made(url, tenant_budget=Bucket(refill_units_per_s=1, burst_s=400, warm_up_s=0))
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 400.0)], {})
    pass_time(settings, step_s)
    found_s = (await budgets.reserve([ask("c", 10.0)], {}))[0].facts.budget_wait_s
    assert found_s == pytest.approx(wait_s, abs=2)


async def test_balances_name_the_levels_that_changed_and_the_servers_time(settings):
    budgets = await filled(settings)
    assert budgets.take_balances() is None
    await budgets.reserve([ask("a", 30.0)], {})
    balances = budgets.take_balances()
    assert balances.levels == pytest.approx(dict(zip(ALL, (970, 470, 70, 1970), strict=True)), abs=0.01)
    assert balances.by == "streams-test"
    as_of_s = redis_of(settings).hget(keys.of(settings).bucket("global", "all"), "as_of")
    assert str(balances.at_s)[:8] == as_of_s[:8].decode()
    assert budgets.take_balances() is None


async def test_a_saturated_pool_holds_a_tenant_to_its_share_and_lets_another_in(settings):
    room = {"default": Capacity(units_per_s=1.0, units=20.0)}
    budgets = await filled(settings, "flood", "calm")
    asks = [ask(f"f{n}", 10.0, tenant="flood") for n in range(5)]
    flood = await budgets.reserve(asks, room)
    assert kinds(flood) == [Paid, Paid, Paid, Refused, Refused]
    assert flood[3].facts.share.mine_waiting_units == 0
    assert flood[4].facts.share.mine_waiting_units == 10
    calm = (await budgets.reserve([ask("c", 10.0, tenant="calm")], room))[0]
    assert isinstance(calm, Paid)
    assert calm.facts.share.tenant_ratio == 0.5


async def test_whoever_comes_first_gets_the_last_of_the_window_whatever_its_share(settings):
    room = {"default": Capacity(units_per_s=1.0, units=20.0)}
    budgets = await filled(settings, "a", "b")
    asks = [ask(f"r{n}", 10.0, tenant=tenant) for n, tenant in enumerate("abaa")]
    assert kinds(await budgets.reserve(asks, room)) == [Paid, Paid, Paid, Refused]


async def test_of_several_runs_one_at_a_time_is_told_that_it_may_answer_what_ended(settings):
    budgets, redis = await filled(settings), redis_of(settings)
    await budgets.finish([Ending("a", "")])
    asks = [ask("a", offset=1)]
    redis.hset(keys.of(settings).reservation("a"), mapping={"origin": asks[0].origin.place, "ended": 1.0})
    (first,), (second,) = [await budgets.reserve(asks, {}) for _ in range(2)]
    assert first.ended_s > hold_s(settings) > second.ended_s


async def test_what_waits_is_counted_once_however_often_it_asks_and_not_once_it_is_finished(settings):
    room = {"default": Capacity(units_per_s=1.0, units=20.0)}
    budgets = await filled(settings)
    await budgets.reserve([ask(f"f{n}", 10.0) for n in range(3)], room)
    for _ in range(3):
        assert kinds(await budgets.reserve([ask("w", 10.0)], room)) == [Refused]
    other = (await budgets.reserve([ask("o", 10.0)], room))[0]
    assert other.facts.share.mine_waiting_units == 10
    await budgets.finish([Ending("w", ""), Ending("o", "")])
    assert (await budgets.reserve([ask("p", 10.0)], room))[0].facts.share.mine_waiting_units == 0


async def test_a_lane_wait_above_the_limit_is_refused_with_its_facts(settings):
    room = {"default": Capacity(units_per_s=1.0, units=10.0)}
    budgets = await filled(settings)
    paid, late = await budgets.reserve([ask("a", 50.0), ask("b", 1.0, lane_wait_limit_s=30.0)], room)
    assert isinstance(paid, Paid)
    assert isinstance(late, Refused)
    assert (late.facts.level, late.facts.share.pool_open_units) == ("", 50)


async def test_attained_cost_decays_and_an_idle_tenant_comes_back_at_the_least_of_the_active_ones(settings):
    budgets = await filled(settings, "busy", "idle", "less")
    await budgets.reserve([ask("b1", 60.0, tenant="busy"), ask("l1", 30.0, tenant="less")], {})
    facts = [s.facts for s in await budgets.reserve([ask("b2", 1.0, tenant="busy"), ask("i", 1.0, tenant="idle")], {})]
    weight = settings.streams.tenant_budget.refill_units_per_s
    assert [f.attained_units for f in facts] == pytest.approx([60 / weight, 30 / weight], rel=0.05)


async def test_a_settlement_corrects_what_was_attained(settings):
    budgets = await filled(settings)
    await budgets.reserve([ask("a", 60.0), ask("b", 1.0)], {})
    await budgets.settle([charge("a", 20.0)])
    facts = (await budgets.reserve([ask("c", 1.0)], {}))[0].facts
    assert facts.attained_units == pytest.approx(21 / settings.streams.tenant_budget.refill_units_per_s, rel=0.05)


async def test_an_unmarked_ledger_answers_lost_and_changes_nothing(settings):
    budgets = opened(settings)
    for call in (budgets.reserve([ask("a")], {}), budgets.finish([Ending("a", "")])):
        with pytest.raises(BudgetsUnavailable) as caught:
            await call
        assert caught.value.reason == "lost"
    assert budgets.is_lost
    assert redis_of(settings).dbsize() == 0
