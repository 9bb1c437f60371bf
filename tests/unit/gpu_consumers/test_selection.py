from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.policy.selection import (
    LANES,
    Credit,
    Lane,
    Shares,
    Window,
    charge,
    choose,
    guaranteed_ratio,
    rank,
)
from gpu_consumers.settings import Gpu
from topics.records import Length, Tier
from topics.settings import Pool

FREE = Window()
AT_THE_CAP = Window(longs_ratio=0.75, longs_cap_ratio=0.75)
HIGH, MEDIUM, LOW, AGED = (Lane(tier, Length.SHORT) for tier in (Tier.HIGH, Tier.MEDIUM, Tier.LOW, Tier.AGED))
HIGH_LONG, MEDIUM_LONG, AGED_LONG = (Lane(tier, Length.LONG) for tier in (Tier.HIGH, Tier.MEDIUM, Tier.AGED))
SHARES = Shares(high=8, medium=4, low=1, aged_ratio=0.1, short=9, long=1)


def serve(waiting, turns, credit=None, *, cost_units=lambda lane: 10.0, window=FREE, shares=SHARES):
    """Cost served by lane while all of `waiting` stay backlogged, and the credit after it."""
    credit, served = credit or Credit(), Counter()
    for _ in range(turns):
        lane = choose(credit, waiting, window)
        credit = charge(shares, credit, waiting, lane, cost_units(lane))
        served[lane] += cost_units(lane)
    return served, credit


def ratios(served):
    return {lane: served[lane] / served.total() for lane in served}


def test_nothing_is_chosen_when_nothing_waits():
    assert choose(Credit(), [], FREE) is None


def test_backlogged_lanes_get_exactly_their_guarantees():
    served, _ = serve(LANES, 20_000)

    assert {lane: pytest.approx(guaranteed_ratio(SHARES, lane), rel=0.02) for lane in LANES} == ratios(served)
    assert pytest.approx(1.0) == sum(guaranteed_ratio(SHARES, lane) for lane in LANES)


def test_shares_are_of_cost_not_of_records():
    served, _ = serve([HIGH, LOW], 10_000, cost_units=lambda lane: 1000.0 if lane == LOW else 10.0)

    assert pytest.approx(1 / 9, rel=0.05) == ratios(served)[LOW]


def test_a_flood_of_high_leaves_low_its_share():
    served, _ = serve([HIGH, HIGH_LONG, LOW], 9000)

    assert pytest.approx(1 / 9, rel=0.02) == ratios(served)[LOW]


def test_one_lane_alone_gets_everything():
    for lane in LANES:
        assert {lane: 1.0} == ratios(serve([lane], 50)[0])


def test_ties_go_to_the_more_urgent_tier_and_to_the_short():
    assert Lane(Tier.HIGH, Length.SHORT) == choose(Credit(), LANES, FREE)
    assert choose(Credit(), [LOW, MEDIUM_LONG, MEDIUM], FREE) == MEDIUM


def test_a_lane_that_wakes_up_is_served_at_once():
    _, credit = serve([LOW], 1000)

    assert choose(credit, [LOW, HIGH], FREE) == HIGH


def test_an_idle_lane_hoards_no_credit():
    _, credit = serve([HIGH], 10_000)
    served, _ = serve([HIGH, LOW], 900, credit)

    assert pytest.approx(1 / 9, abs=0.01) == ratios(served)[LOW]


def test_a_lane_served_alone_owes_nothing_afterwards():
    _, credit = serve([LOW], 10_000)
    served, _ = serve([HIGH, LOW], 900, credit)

    assert pytest.approx(1 / 9, abs=0.01) == ratios(served)[LOW]


@pytest.mark.parametrize("others", [[HIGH], [LOW], [MEDIUM, LOW], [HIGH, MEDIUM, LOW]])
def test_aged_work_gets_its_ratio_beside_whomever_else_waits(others):
    served, _ = serve([AGED, AGED_LONG, *others], 10_000)

    assert pytest.approx(0.1, rel=0.03) == ratios(served)[AGED] + ratios(served)[AGED_LONG]


def test_aged_work_alone_is_not_capped():
    served, _ = serve([AGED], 100)

    assert served == {AGED: 1000.0}


def test_longs_at_their_cap_stand_back():
    assert choose(Credit(), [HIGH_LONG, LOW], Window(longs_ratio=0.74, longs_cap_ratio=0.75)) == HIGH_LONG
    assert choose(Credit(), [HIGH_LONG, LOW], AT_THE_CAP) == LOW
    assert choose(Credit(), [HIGH_LONG, MEDIUM_LONG], AT_THE_CAP) is None


def test_longs_that_stood_back_do_not_catch_up_at_the_cost_of_shorts():
    _, credit = serve([MEDIUM, MEDIUM_LONG], 1000, window=AT_THE_CAP)
    served, _ = serve([MEDIUM, MEDIUM_LONG], 1000, credit)

    assert pytest.approx(0.1, abs=0.01) == ratios(served)[MEDIUM_LONG]


def test_in_the_engine_shorts_precede_longs_and_tiers_keep_their_order():
    assert list(range(8)) == sorted(rank(lane) for lane in LANES)
    assert rank(HIGH) < rank(AGED) < rank(MEDIUM) < rank(LOW) < rank(HIGH_LONG) < rank(MEDIUM_LONG)


@given(
    waiting=st.lists(st.sets(st.sampled_from(LANES), min_size=1), min_size=1, max_size=200),
    costs=st.lists(st.floats(0.1, 10_000), min_size=200, max_size=200),
    longs_ratio=st.floats(0, 1),
)
def test_some_waiting_lane_is_served_unless_longs_stand_back_and_virtual_time_never_falls(waiting, costs, longs_ratio):
    credit = Credit()
    for lanes, cost_units in zip(waiting, costs, strict=False):
        lane = choose(credit, lanes, Window(longs_ratio, 0.75))
        if lane is None:
            assert longs_ratio >= 0.75
            assert all(one.length is Length.LONG for one in lanes)
            continue
        assert lane in lanes
        after = charge(SHARES, credit, lanes, lane, cost_units)
        assert all(new >= old for new, old in zip(after.tiers, credit.tiers, strict=True))
        credit = after


@given(costs=st.lists(st.floats(1, 500), min_size=300, max_size=300))
def test_with_any_costs_low_is_behind_its_guarantee_by_at_most_a_few_jobs(costs):
    credit, served = Credit(), Counter()
    waiting = [HIGH, MEDIUM, LOW]
    for cost_units in costs:
        lane = choose(credit, waiting, FREE)
        credit = charge(SHARES, credit, waiting, lane, cost_units)
        served[lane] += cost_units
        assert served[LOW] >= served.total() / 13 - 2 * 500


def test_the_defaults_of_the_settings_are_those_of_the_shares():
    assert Gpu().shares(Pool()) == Shares()
