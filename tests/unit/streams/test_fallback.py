"""Several workers that live on their parts of the budgets."""

from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from streams import fallback as module
from streams.fallback import Fallback
from streams.limits import LiveLimits
from streams.policy.admission import Admit, Defer, Terms
from streams.settings import Bucket, Degrade, Streams, StreamsSettings
from tests.support.builders import work
from tests.support.clock import FakeClock
from topics.records import Priority

WIDE = Bucket(refill_units_per_s=1e9)
LEVELS = ("global", "pool", "tenant", "class")


def settings(degrade=None, **budgets):
    wide = dict.fromkeys(("global_budget", "pool_budget", "tenant_budget"), WIDE)
    classes = {"class_budgets": dict.fromkeys(Priority, WIDE)}
    return StreamsSettings(streams=Streams(**{**wide, **classes, "degrade": degrade or Degrade(), **budgets}))


def terms(units):
    return Terms(units, 30.0, 120.0, by_deadline=False, is_back=False)


def asks(fallback, units=10.0, tenant="acme", priority=Priority.HIGH, pool="default"):
    return fallback.decide(work({"tenant": tenant, "priority": priority}, {"pool": pool}), terms(units))[0]


def admits(fallback, units=10.0, **fields):
    return isinstance(asks(fallback, units, **fields), Admit)


def admitted_units(fallback, units=1.0, tries=1000, **fields):
    return sum(units for _ in range(tries) if admits(fallback, units, **fields))


def worker(clock=None, share=1.0, **fields):
    return made(settings(**fields), clock or FakeClock(), lambda: share)


def made(loaded, clock, share_ratio):
    return Fallback(loaded, clock, share_ratio, LiveLimits(loaded.streams))


def test_each_class_goes_by_its_own_mode():
    fallback = worker(degrade=Degrade(high="open", medium="local_share", low="closed"), tenant_budget=bucket(10.0))
    assert admits(fallback, 1e12, priority=Priority.HIGH)
    assert admits(fallback, 4.0, priority=Priority.MEDIUM)
    assert isinstance(asks(fallback, 4.0, priority=Priority.MEDIUM), Defer)
    assert isinstance(asks(fallback, 0.0, priority=Priority.LOW), Defer)


def bucket(refill_units_per_s, burst_s=60.0, **fields):
    return Bucket(refill_units_per_s=refill_units_per_s, burst_s=burst_s, **fields)


def test_each_level_bounds_what_is_admitted():
    ten = bucket(10.0)
    cases = (
        {"global_budget": ten},
        {"pool_budget": ten},
        {"tenant_budget": ten},
        {"tenant_budgets": {"acme": ten}},
        {"class_budgets": {**dict.fromkeys(Priority, WIDE), Priority.HIGH: ten}},
    )
    for case in cases:
        assert admitted_units(worker(degrade=Degrade(local_ratio=0.5), share=0.6, **case)) == 3.0, case


def test_what_is_refused_on_one_level_takes_nothing_from_the_others():
    fallback = worker(global_budget=bucket(20.0), tenant_budgets={"poor": bucket(1e-6)})
    assert admitted_units(fallback, tenant="poor") == 0.0
    assert admitted_units(fallback, tenant="rich") == 10.0


def test_it_fills_up_as_time_passes_to_the_part_of_the_budget_and_no_further():
    clock = FakeClock()
    fallback = worker(clock, tenant_budget=bucket(10.0, burst_s=8.0))
    assert admitted_units(fallback) == 5.0
    clock.advance(2.0)
    assert admitted_units(fallback) == 10.0
    clock.advance(1000.0)
    assert admitted_units(fallback) == 40.0


def test_without_partitions_nothing_is_admitted():
    assert admitted_units(worker(share=0.0)) == 0.0


def test_outages_in_quick_succession_do_not_each_begin_with_a_second_of_refill():
    clock = FakeClock()
    fallback = worker(clock, tenant_budget=bucket(100.0))
    total = 0.0
    for _ in range(20):
        total += admitted_units(fallback)
        fallback.reset()
        clock.advance(0.1)
    assert total <= 50.0 * (1.0 + 20 * 0.1)


def test_nothing_is_saved_up_between_two_outages():
    clock = FakeClock()
    fallback = worker(clock, tenant_budget=bucket(10.0))
    admitted_units(fallback)
    fallback.reset()
    clock.advance(3600.0)
    assert admitted_units(fallback) == 5.0


def test_a_share_that_was_away_between_two_looks_is_not_paid_for_that_time():
    clock, share = FakeClock(), [1.0]
    fallback = made(settings(tenant_budget=bucket(10.0)), clock, lambda: share[0])
    admitted_units(fallback)
    for ratio in (0.0, 1.0):
        share[0] = ratio
        fallback.share_changed()
        clock.advance(4.0 if ratio == 0.0 else 1.0)
    assert admitted_units(fallback) == 5.0


def test_a_bucket_that_nobody_asked_for_yet_begins_by_the_smallest_share_of_the_outage():
    share = [0.5]
    fallback = made(settings(tenant_budget=bucket(100.0)), FakeClock(), lambda: share[0])
    assert admitted_units(fallback, tenant="acme") == 25.0
    share[0] = 1.0
    assert admitted_units(fallback, tenant="blue") == 25.0


def test_a_changed_limit_holds_from_then_on_and_goes_back():
    clock, loaded = FakeClock(), settings(tenant_budget=bucket(10.0))
    limits = LiveLimits(loaded.streams)
    fallback = Fallback(loaded, clock, lambda: 1.0, limits)
    limits.set("tenant", "acme", bucket(4.0))
    assert admitted_units(fallback) == 2.0
    limits.set("tenant", "acme", None)
    assert admitted_units(fallback) == 0.0
    clock.advance(10.0)
    assert admitted_units(fallback) == 50.0


def test_a_flood_of_tenants_takes_no_more_memory_than_its_bound(monkeypatch):
    monkeypatch.setattr(module, "MAX_BUCKETS", 10)
    clock = FakeClock()
    fallback = worker(clock, tenant_budget=bucket(10.0))
    admitted = [admits(fallback, 5.0, tenant=f"t{n}") for n in range(20)]
    assert admitted == [True] * 7 + [False] * 13  # beside the buckets of global, pool and class
    assert len(fallback._locals) == 10
    clock.advance(1.0)
    assert admits(fallback, 5.0, tenant="t19"), "buckets that are as good as new make room"


def test_decisions_are_counted_by_mode_and_verdict():
    def count(mode, verdict):
        labels = {"mode": mode, "verdict": verdict}
        return REGISTRY.get_sample_value("rampmeter_streams_degraded_decisions_total", labels) or 0.0

    before = count("local_share", "admit"), count("closed", "defer")
    fallback = worker()
    asks(fallback, priority=Priority.HIGH)
    asks(fallback, priority=Priority.LOW)
    assert (count("local_share", "admit"), count("closed", "defer")) == (before[0] + 1, before[1] + 1)


RATE, BURST_S, RATIO = 100.0, 5.0, 0.5
ask = st.tuples(st.integers(0, 1), st.sampled_from((1.0, 7.0, 25.0, 60.0)), st.sampled_from(("acme", "blue")))
step = st.one_of(st.lists(ask, max_size=30), st.floats(0.0, 20.0), st.sampled_from((0.0, 0.25, 0.5, 1.0)).map(str))


def run(steps):
    """Units that two workers admitted at which second of one outage; a string moves the first one's share."""
    clock, shares = FakeClock(mono_s=0.0), [0.5, 0.5]
    loaded = settings(degrade=Degrade(local_ratio=RATIO), global_budget=bucket(RATE, BURST_S))
    workers = [made(loaded, clock, lambda n=n: shares[n]) for n in (0, 1)]
    for one in workers:
        asks(one, 0.0)
    admitted = []
    for what in steps:
        if isinstance(what, float):
            clock.advance(what)
        elif isinstance(what, str):
            shares[:] = [float(what), 1.0 - float(what)]
            for one in workers:
                one.share_changed()
        else:
            admitted += [(clock.mono_s(), u) for n, u, tenant in what if admits(workers[n], u, tenant=tenant)]
    return admitted


@given(st.lists(step, max_size=40))
@example([8.0, [(0, 60.0, "acme")], "0.0", [(1, 60.0, "acme")] * 4])
@hypothesis_settings(deadline=None, max_examples=150)
def test_two_workers_together_never_exceed_the_local_ratio_in_any_window(steps):
    admitted = run(steps)
    for first, (begin_s, _) in enumerate(admitted):
        total = 0.0
        for at_s, units in admitted[first:]:
            total += units
            assert total <= RATIO * RATE * (BURST_S + at_s - begin_s) + 1e-6
            if first == 0:
                assert total <= RATIO * RATE * (module.degrade.START_S + at_s) + 1e-6


def test_two_workers_together_get_the_whole_local_ratio_when_both_are_asked():
    busy = [[(n, 1.0, "acme") for n in (0, 1)] * 60, 1.0] * 10
    assert sum(units for _, units in run(busy)) == RATIO * RATE * 10
