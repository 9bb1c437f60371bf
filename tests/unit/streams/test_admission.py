"""What admission decides about a priced request, from what the ledger knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.policy import admission, evidence, sharing
from streams.policy.admission import Admit, Defer, Facts, Hold, Reject, Rules, Terms
from streams.policy.sharing import Capacity, Share
from streams.settings import StreamsSettings
from tests.support.builders import WALL_S, price, request
from topics.outcomes import Outcome, Reason
from topics.records import Priority

RULES = Rules(window_s=10.0, hold_s=2.0, delays_s=(1, 5, 30))
CAPACITY = Capacity(units_per_s=100.0, units=50.0)


def asked(**fields):
    return Terms(
        **{
            "units": 100.0,
            "patience_s": 30.0,
            "lane_wait_limit_s": 300.0,
            "by_deadline": False,
            "is_back": False,
            **fields,
        }
    )


def decide(terms=None, capacity=CAPACITY, share=None, **facts):
    return admission.decide(terms or asked(), Facts(share=share or Share(), **facts), capacity, RULES)


def test_what_is_paid_and_finds_room_is_admitted_with_its_place():
    share = Share(pool_open_units=250, lane_open_units=250, lane_open_requests=7, mine_open_units=250)
    assert decide(share=share) == Admit(wait_estimate_s=2.0, position=7)


@pytest.mark.parametrize("capacity", [CAPACITY, Capacity()])
@pytest.mark.parametrize("by_deadline", [True, False])
def test_what_comes_too_late_already_is_rejected_although_nothing_waits(capacity, by_deadline):
    verdict = decide(asked(lane_wait_limit_s=-0.01, by_deadline=by_deadline), capacity)
    assert verdict.outcome is (Outcome.REJECTED_DEADLINE if by_deadline else Outcome.REJECTED_OVERLOAD)


def test_an_unknown_drain_rate_gives_no_estimate_and_refuses_nothing():
    crowd = Share(pool_open_units=1e9, lane_open_units=1e9, mine_open_units=1e9, lane_open_requests=3)
    assert decide(capacity=Capacity(), share=crowd) == Admit(None, 3)


@pytest.mark.parametrize(
    ("wait_s", "verdict"),
    [
        (0.001, Hold(0.001, Reason.BUDGET_TENANT)),
        (2.0, Hold(2.0, Reason.BUDGET_TENANT)),
        (2.001, Defer(1, Reason.BUDGET_TENANT)),
        (4.99, Defer(1, Reason.BUDGET_TENANT)),
        (5.0, Defer(5, Reason.BUDGET_TENANT)),
        (29.9, Defer(5, Reason.BUDGET_TENANT)),
        (30.0, Defer(30, Reason.BUDGET_TENANT)),
    ],
)
def test_a_short_wait_for_budget_is_spent_in_memory_a_long_one_in_the_longest_delay_that_fits(wait_s, verdict):
    assert decide(level="tenant", budget_wait_s=wait_s) == verdict


@pytest.mark.parametrize(
    ("level", "reason"),
    [
        ("global", Reason.BUDGET_GLOBAL),
        ("pool", Reason.BUDGET_POOL),
        ("tenant", Reason.BUDGET_TENANT),
        ("class", Reason.BUDGET_CLASS),
    ],
)
def test_what_cannot_wait_for_budget_is_rejected_with_the_exact_time_to_come_again(level, reason):
    verdict = decide(asked(patience_s=12.0), level=level, budget_wait_s=12.34567)
    assert verdict == Reject(Outcome.REJECTED_BUDGET, reason, f"the {level} budget is spent", 12.346)


def test_a_wait_of_exactly_the_patience_is_spent():
    assert decide(asked(patience_s=5.0), level="pool", budget_wait_s=5.0) == Defer(5, Reason.BUDGET_POOL)


def test_what_can_never_be_paid_is_too_large_and_need_not_come_again():
    verdict = decide(level="pool", never_cap_units=600.0)
    assert (verdict.outcome, verdict.reason) == (Outcome.REJECTED_TOO_LARGE, Reason.BUDGET_POOL)
    assert verdict.retry_after_s is None
    assert "600 units" in verdict.detail


@pytest.mark.parametrize(
    ("by_deadline", "outcome", "reason"),
    [
        (True, Outcome.REJECTED_DEADLINE, Reason.DEADLINE_UNREACHABLE),
        (False, Outcome.REJECTED_OVERLOAD, Reason.LANE_WAIT),
    ],
)
def test_what_would_start_too_late_is_rejected_at_once_and_told_how_late(by_deadline, outcome, reason):
    share = Share(pool_open_units=550, lane_open_units=550, lane_open_requests=9)  # 5 s
    verdict = decide(asked(lane_wait_limit_s=4.0, by_deadline=by_deadline), share=share)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)
    assert (verdict.retry_after_s, verdict.wait_estimate_s, verdict.position) == (1.0, 5.0, 9)
    assert isinstance(decide(asked(lane_wait_limit_s=5.0, by_deadline=by_deadline), share=share), Admit)


def test_in_an_overload_of_all_classes_the_lowest_is_shed_first():
    weights = {"high": 8, "medium": 4, "low": 1}
    waits_s = StreamsSettings().streams.max_wait_s

    def is_shed(name, backlog_s):
        units = backlog_s * CAPACITY.units_per_s / len(weights)
        others = tuple((units, weights[other] / weights[name]) for other in weights if other != name)
        share = Share(pool_open_units=3 * units + CAPACITY.units, lane_open_units=units, others=others)
        return isinstance(decide(asked(lane_wait_limit_s=waits_s[Priority(name)]), share=share), Reject)

    shed_at_s = {name: next(s for s in range(1, 10_000) if is_shed(name, s)) for name in weights}
    assert shed_at_s["low"] < shed_at_s["medium"] < shed_at_s["high"]


CROWDED = Share(
    pool_open_units=1050, lane_open_units=525, mine_open_units=500, tenant_ratio=0.5, lane_ratio=0.5,
    others=((525.0, 1.0),),
)  # fmt: skip
"""Fair are 262.5 units, drained at 25 a second."""


def test_beyond_its_share_a_tenant_waits_before_the_lane():
    wait_s = (500 + 100 - 262.5) / 25
    assert decide(share=CROWDED) == Defer(1, Reason.FAIR_SHARE)
    assert sharing.before_lane_s(100, CROWDED, CAPACITY, 10.0, is_back=False) == wait_s


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [
        # A lane's guaranteed share says 80 s and more; the pool could be through with all of its tenant in 3 and 6 s.
        ({"mine_open_units": 200}, Hold(1.5, Reason.FAIR_SHARE)),
        ({"mine_open_units": 500}, Defer(1, Reason.FAIR_SHARE)),
        # Whoever has much waiting cannot be wanted before the pool could have done that.
        ({"mine_open_units": 200, "mine_waiting_units": 700}, Defer(5, Reason.FAIR_SHARE)),
        ({"mine_open_units": 200, "mine_waiting_units": 5700}, Defer(30, Reason.FAIR_SHARE)),
    ],
)
def test_a_wait_at_a_small_share_is_looked_at_again_before_the_pool_can_run_dry(mine, verdict):
    crowd = Share(pool_open_units=1050, lane_open_units=500, lane_ratio=0.05, tenant_ratio=0.2, **mine)
    assert sharing.before_lane_s(100, crowd, CAPACITY, 10.0, is_back=False) > 80
    assert decide(asked(lane_wait_limit_s=1e9), share=crowd) == verdict


def test_a_wait_before_the_lane_counts_towards_the_deadline():
    limit_s = sharing.in_all_s(100, CROWDED, CAPACITY, is_back=False)
    assert limit_s > sharing.on_lane_s(CROWDED, CAPACITY) + 1
    assert isinstance(decide(asked(lane_wait_limit_s=limit_s + 0.01, by_deadline=True), share=CROWDED), Defer)
    verdict = decide(asked(lane_wait_limit_s=limit_s - 0.01, by_deadline=True), share=CROWDED)
    assert verdict.outcome is Outcome.REJECTED_DEADLINE


@pytest.mark.parametrize(
    ("limit_s", "by_deadline", "verdict"),
    [
        (40.0, False, Defer(5, Reason.PAUSED)),
        (4.0, True, Defer(1, Reason.PAUSED)),
        (0.5, True, Outcome.REJECTED_DEADLINE),
        (0.5, False, Outcome.REJECTED_OVERLOAD),
    ],
)
def test_what_is_paused_waits_as_long_as_it_may(limit_s, by_deadline, verdict):
    made = admission.decide_paused(asked(lane_wait_limit_s=limit_s, by_deadline=by_deadline), RULES)
    assert getattr(made, "outcome", made) == verdict


def test_what_may_not_wait_in_memory_waits_in_the_shortest_delay():
    assert admission.decide_crammed(Hold(0.1, Reason.FAIR_SHARE), RULES) == Defer(1, Reason.FAIR_SHARE)
    assert admission.decide_crammed(Admit(), RULES) == Admit()


@pytest.mark.parametrize(
    ("deadline_s", "waited_s", "service_s", "patience_s", "limit_s", "by_deadline"),
    [
        (None, 0, None, 30.0, 300.0, False),
        (None, 10, None, 20.0, 290.0, False),
        (None, 999, None, 0.0, -699.0, False),
        (5.0, 0, None, 4.9, 4.9, True),  # a unit is a millisecond of an engine
        (5.0, 0, 2.0, 3.0, 3.0, True),
        (5.0, 6, 2.0, 0.0, -3.0, True),
        (500.0, 0, None, 30.0, 300.0, False),
    ],
)
def test_terms_follow_from_deadline_arrival_and_class(
    deadline_s, waited_s, service_s, patience_s, limit_s, by_deadline
):
    deadline = None if deadline_s is None else WALL_S + deadline_s
    made = admission.terms(
        request(deadline_s=deadline), price(service_s=service_s), WALL_S + waited_s,
        max_deferral_s=30.0, max_wait_s=300.0, is_back=True,
    )  # fmt: skip
    assert (made.units, made.is_back, made.by_deadline) == (100.0, True, by_deadline)
    assert (made.patience_s, made.lane_wait_limit_s) == pytest.approx((patience_s, limit_s), abs=1e-6)


@pytest.mark.parametrize(("deadline_s", "fits"), [(None, True), (1.5, True), (2.0, True), (1.0, False)])
def test_a_deadline_must_leave_the_engine_its_time(deadline_s, fits):
    deadline = None if deadline_s is None else WALL_S + deadline_s
    assert admission.fits_deadline(request(deadline_s=deadline), price(cost_units=1500.0), WALL_S) == fits


AMOUNTS = st.floats(0, 1e6)
RATIOS = st.floats(0.001, 1)
TERMS = st.builds(Terms, AMOUNTS, AMOUNTS, st.floats(-1e6, 1e6), st.booleans(), st.booleans())
SHARES = st.builds(Share, AMOUNTS, AMOUNTS, st.integers(0, 1000), RATIOS, AMOUNTS, AMOUNTS, RATIOS)
FACTS = st.builds(
    Facts, SHARES, st.sampled_from(admission.LEVELS), st.just(0.0) | AMOUNTS, st.none() | AMOUNTS, AMOUNTS
)
CAPACITIES = st.builds(Capacity, st.none() | st.just(0.0) | st.floats(0.01, 1e6), st.none() | AMOUNTS)


@given(TERMS, FACTS, CAPACITIES)
def test_the_logged_inputs_are_enough_to_decide_again(terms, facts, capacity):
    inputs = evidence.of(terms, facts, capacity, RULES)
    assert evidence.given(inputs) == (terms, facts, capacity, RULES)
    assert admission.decide(*evidence.given(inputs)) == admission.decide(terms, facts, capacity, RULES)


@given(TERMS, FACTS, CAPACITIES)
def test_nothing_is_admitted_that_a_budget_cannot_pay(terms, facts, capacity):
    verdict = admission.decide(terms, facts, capacity, RULES)
    if facts.budget_wait_s > 0 or facts.never_cap_units is not None:
        assert not isinstance(verdict, Admit)
    if isinstance(verdict, Reject) and verdict.outcome is not Outcome.REJECTED_TOO_LARGE:
        assert verdict.retry_after_s >= 0
