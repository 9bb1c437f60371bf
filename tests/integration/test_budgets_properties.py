"""What must hold of the ledger after any order of calls, against a real Redis."""

import asyncio
import itertools
import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from streams.budgets import Ending, Paid, Redelivered, Refused, Repeated
from streams.policy import admission
from streams.policy.admission import Admit, Rules, Terms
from streams.policy.sharing import Capacity, Share
from streams.settings import Bucket
from tests.support.ledger import ask, charge, filled, levels, made, pass_time, redis_of, still
from topics import keys
from topics.records import Length, Priority

TENANTS = ("t0", "t1", "t2")
LANES = [f"{tier}.{length}" for tier in Priority for length in Length]
RULES = Rules(window_s=10.0, hold_s=2.0, delays_s=(1, 5, 30))


@pytest.fixture(scope="module")
def url(redis_server):
    return redis_server.url.rsplit("/", 1)[0] + "/15"


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as running:
        yield running


def decided(asked, facts, capacity):
    terms = Terms(asked.units, 1e6, asked.lane_wait_limit_s, by_deadline=False, is_back=asked.is_back)
    return admission.decide(terms, facts, capacity, RULES)


# Mostly of one lane in a pool that is soon saturated, since that is where there is something to decide.
wanted = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(TENANTS),
        "lane": st.sampled_from(["high.short"] * 6 + LANES),
        "units": st.sampled_from([1.0, 3.0, 7.7, 10.0]) | st.floats(0.01, 30.0) | st.just(300.0),
        "lane_wait_limit_s": st.just(1000.0) | st.just(1000.0) | st.floats(0.0, 60.0),
        "is_back": st.booleans(),
    }
)
rooms = (
    st.just(Capacity(1.0, 20.0))
    | st.just(Capacity(3.0, 5.0))
    | st.builds(
        Capacity,
        st.none() | st.just(0.0) | st.floats(0.01, 50.0),
        st.none() | st.just(0.0) | st.floats(0.0, 100.0),
    )
)


class Model:
    """Who has what open and waiting, kept by plain sums over all requests."""

    def __init__(self, settings):
        self.settings = settings
        self.weights = {name: bucket.refill_units_per_s for name, bucket in settings.streams.tenant_budgets.items()}
        pool = settings.pools["default"]
        self.lanes = {
            f"{tier}.{length}": getattr(pool, f"{tier}_weight") * getattr(pool, f"{length}_weight")
            for tier in Priority
            for length in Length
        }
        self.open, self.waiting = {}, {}

    def share(self, asked):
        def held(kind, lane=None, tenant=None):
            return [a.units for a in kind.values() if lane in (None, a.lane) and tenant in (None, a.tenant)]

        others = [*self.open.values(), *self.waiting.values()]
        lanes = {a.lane for a in others} | {asked.lane}
        tenants = {a.tenant for a in others if a.lane == asked.lane} | {asked.tenant}
        return Share(
            math.fsum(held(self.open)),
            math.fsum(held(self.open, asked.lane)),
            len(held(self.open, asked.lane)),
            self.lanes[asked.lane] / sum(self.lanes[lane] for lane in lanes),
            math.fsum(held(self.open, asked.lane, asked.tenant)),
            math.fsum(held(self.waiting, asked.lane, asked.tenant)),
            self.weights[asked.tenant] / sum(self.weights[name] for name in tenants),
            math.fsum(held(self.waiting, asked.lane)),
            tuple(
                (math.fsum([*held(self.open, lane), *held(self.waiting, lane)]), weight / self.lanes[asked.lane])
                for lane, weight in self.lanes.items()
                if lane in lanes - {asked.lane}
            ),
        )

    def take(self, asked, standing):
        self.waiting.pop(asked.id, None)
        (self.open if isinstance(standing, Paid) else self.waiting)[asked.id] = asked


@hypothesis(max_examples=100)
@given(st.lists(st.tuples(st.lists(wanted, min_size=1, max_size=12), rooms, st.integers(0, 9)), max_size=5))
def test_lua_reserves_exactly_what_the_policy_admits_and_its_facts_are_those_of_plain_sums(url, runner, batches):
    budgets = {f"t{n}": Bucket(refill_units_per_s=1e-8 * (n + 1), burst_s=60e8 / (n + 1)) for n in range(3)}
    settings = made(url, tenant_budgets=budgets, pool_budget=still(150), global_budget=still(140))
    redis_of(settings).flushdb()
    runner.run(_compare(settings, batches))


async def _compare(settings, batches):
    budgets, model, again = await filled(settings, *TENANTS), Model(settings), []
    for turn, (wants, room, drop) in enumerate(batches):
        fresh = [
            ask(f"{turn}-{n}", priority=Priority(want["lane"].split(".")[0]), **want) for n, want in enumerate(wants)
        ]
        asks = [*fresh, *again]
        standings = await budgets.reserve(asks, {"default": room})
        for asked, standing in zip(asks, standings, strict=True):
            model.waiting.pop(asked.id, None)
            facts = standing.facts
            share = model.share(asked)
            for name in Share.__slots__:
                found, expected = getattr(facts.share, name), getattr(share, name)
                if name == "others":
                    found, expected = (list(itertools.chain(*pairs)) for pairs in (found, expected))
                assert found == pytest.approx(expected, abs=1e-9), name
            assert isinstance(standing, Paid) == isinstance(decided(asked, facts, room), Admit), facts
            assert isinstance(standing, Refused) or facts.budget_wait_s == 0
            model.take(asked, standing)
        again = [a for a in asks if a.id in model.waiting][:drop]
        for name in list(model.open)[:drop]:
            await budgets.settle([charge(name, 1.0, tenant=model.open.pop(name).tenant)])


@hypothesis(max_examples=40)
@given(
    st.sampled_from([False, True]),
    st.lists(st.tuples(st.floats(0.0, 30.0), st.lists(st.floats(0.5, 15.0), max_size=6)), min_size=5, max_size=30),
)
def test_no_window_of_any_length_admits_more_than_burst_and_rate_allow(url, runner, is_paced, steps):
    bucket = Bucket(refill_units_per_s=1.0, burst_s=20.0, warm_up_s=10.0, paced=is_paced)
    settings = made(url, tenant_budget=bucket)
    redis_of(settings).flushdb()
    admitted = runner.run(_admitted(settings, steps))
    largest = max((units for _, units in admitted), default=0)
    burst = largest if is_paced else bucket.cap_units
    for first in range(len(admitted)):
        for last in range(first, len(admitted)):
            spent = sum(units for _, units in admitted[first : last + 1])
            window_s = admitted[last][0] - admitted[first][0]
            assert spent <= burst + bucket.refill_units_per_s * window_s + 1e-3
    assert sum(units for _, units in admitted) <= largest * is_paced + admitted[-1][0] if admitted else True


async def _admitted(settings, steps):
    """(seconds since the bucket's birth, units) of what was paid."""
    budgets = await filled(settings, "other")
    await budgets.reserve([ask("born", 0.4)], {})
    born_s, passed_s, admitted = budgets.take_balances().at_s, 0.0, []
    await budgets.finish([Ending("born", "")])
    for turn, (after_s, units) in enumerate(steps):
        pass_time(settings, after_s)
        passed_s += after_s
        asks = [ask(f"{turn}-{n}", each) for n, each in enumerate(units)]
        standings = await budgets.reserve(asks, {})
        paid = [a.units for a, s in zip(asks, standings, strict=True) if isinstance(s, Paid)]
        if paid:
            admitted.append((budgets.take_balances().at_s - born_s + passed_s, sum(paid)))
    return admitted


class Ledger(RuleBasedStateMachine):
    """Any order of reservations, settlements (doubled, late, missing, partial), endings and lapses."""

    url = ""

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.settings = made(
            self.url,
            tenant_budgets=dict.fromkeys(TENANTS, still(10**6)),
            pool_budget=still(10**6),
            global_budget=still(10**6),
            # Full after a lapse: what it gives back then would lie above the cap.
            class_budgets=dict.fromkeys(Priority, Bucket(refill_units_per_s=0.5, burst_s=80, warm_up_s=0)),
        )
        redis_of(self.settings).flushdb()
        self.budgets = self.runner.run(filled(self.settings, *TENANTS))
        # Half full, so that no refund is cut at the cap and every unit can be followed.
        halves = {f"tenant:{name}": 5e5 for name in TENANTS} | {"pool:default": 5e5, "global:all": 5e5}
        for name, level in halves.items():
            redis_of(self.settings).hset(keys.of(self.settings).bucket(*name.split(":")), "level", level)
        self.open, self.ids = {}, []
        self.seen, self.over, self.gone = {}, set(), set()
        self.reserved, self.refunded, self.charged = defaultdict(float), defaultdict(float), defaultdict(float)

    def teardown(self):
        self.runner.close()

    some_units = st.sampled_from([0.0, 0.5, 1.0, 6.0, 25.0])
    some_id = st.integers(0, 14)

    @rule(number=some_id, units=some_units.filter(bool), offset=st.integers(0, 1), lane=st.sampled_from(LANES))
    def reserve(self, number, units, offset, lane):
        asked = ask(
            f"r{number}",
            units,
            offset=offset,
            tenant=TENANTS[number % 3],
            lane=lane,
            priority=Priority(lane.split(".")[0]),
        )
        standing = self.runner.run(self.budgets.reserve([asked], {}))[0]
        if isinstance(standing, Paid):
            assert asked.id not in self.open
            self.open[asked.id] = asked
            self.reserved[asked.tenant] += units
            self.over.discard(asked.id)
            self.gone.discard(asked.id)
        assert isinstance(standing, Paid | Refused | Redelivered | Repeated)

    def _charge(self, number, units, attempt, *, partial, reserved_units=0.0):
        name = f"r{number}"
        held = self.open.get(name)
        lane = held.lane if held else "high.short"
        return charge(
            name,
            units,
            attempt=attempt,
            partial=partial,
            reserved_units=reserved_units,
            tenant=TENANTS[number % 3],
            lane=lane,
            priority=Priority(lane.split(".")[0]),
        )

    @rule(number=some_id, units=some_units, attempt=st.integers(1, 3), copies=st.integers(1, 2))
    def settle(self, number, units, attempt, copies):
        """Also of ids that were never reserved, or whose reservation lapsed or was given back."""
        item = self._charge(number, units, attempt, partial=False)
        answers = self.runner.run(self.budgets.settle([item] * copies))
        expected = (
            "repeat" if item.id in self.over else "settled" if {item.id} & {*self.open, *self.gone} else "unknown"
        )
        assert [a.result for a in answers] == [expected, *["repeat"] * (copies - 1)]
        if expected != "repeat":
            held = self.open.pop(item.id, None)
            assert answers[0].refunded_units == pytest.approx((held.units if held else 0.0) - units)
            self.refunded[item.tenant] += held.units if held else 0.0
            self.charged[item.tenant] += units
            self.over.add(item.id)

    @rule(number=some_id, units=some_units, attempt=st.integers(1, 3))
    def settle_a_part(self, number, units, attempt):
        item = self._charge(number, units, attempt, partial=True)
        answer = self.runner.run(self.budgets.settle([item]))[0]
        if answer.result != "repeat":
            assert answer.refunded_units == -units
            self.charged[item.tenant] += units
        assert (answer.result == "repeat") == ((item.id, attempt) in self.seen)
        self.seen[item.id, attempt] = True

    @rule(number=some_id)
    def finish(self, number):
        name = f"r{number}"
        self.runner.run(self.budgets.finish([Ending(name, "cancelled")]))
        if name in self.open:
            held = self.open.pop(name)
            self.refunded[held.tenant] += held.units
        if name not in self.over:
            self.gone.add(name)

    @precondition(lambda self: self.open)
    @rule()
    def lapse(self):
        """All that is open; what is remembered of the ids goes with its own expiry, which is not up yet."""
        pass_time(self.settings, self.settings.dedupe_window_s + 1)
        self.runner.run(self.budgets.reserve([ask("reaper", 10**9, tenant="t0")], {}))
        self.runner.run(self.budgets.finish([Ending("reaper", "")]))
        for name, held in self.open.items():
            self.refunded[held.tenant] += held.units
            self.gone.add(name)
        self.open.clear()

    @invariant()
    def every_unit_is_accounted_for(self):
        spent = []
        for tenant in TENANTS:
            open_units = sum(a.units for a in self.open.values() if a.tenant == tenant)
            assert self.reserved[tenant] - self.refunded[tenant] == pytest.approx(open_units, abs=1e-6)
            spent.append(self.charged[tenant] + open_units)
        names = [*(f"tenant:{name}" for name in TENANTS), "pool:default", "global:all"]
        expected = [5e5 - units for units in [*spent, sum(spent), sum(spent)]]
        assert levels(self.settings, *names) == pytest.approx(expected, abs=0.01)

    @invariant()
    def what_is_open_is_counted(self):
        redis = redis_of(self.settings)
        probe = ask("probe", 10**9, tenant="t0", lane="high.short")
        share = self.runner.run(self.budgets.reserve([probe], {}))[0].facts.share
        self.runner.run(self.budgets.finish([Ending("probe", "")]))
        redis.delete(keys.of(self.settings).reservation("probe"))
        lane = [a.units for a in self.open.values() if a.lane == "high.short"]
        assert share.pool_open_units == pytest.approx(sum(a.units for a in self.open.values()))
        assert (share.lane_open_units, share.lane_open_requests) == (pytest.approx(sum(lane)), len(lane))

    @invariant()
    def the_books_agree(self):
        assert self.runner.run(self.budgets.drift(["default"], 1000)) == {"default": pytest.approx(0.0, abs=1e-6)}

    @invariant()
    def no_level_is_above_its_cap(self):
        assert max(levels(self.settings, *(f"class:{name}" for name in Priority))) <= 40.0001


def test_every_unit_is_accounted_for_after_any_order_of_calls(url):
    Ledger.url = url
    run_state_machine_as_test(Ledger, settings=hypothesis(max_examples=25, stateful_step_count=40, deadline=None))
