"""Admission without Redis, as pure decisions."""

import pytest

from streams.policy.admission import Admit, Defer, Terms
from streams.policy.degrade import START_S, Limit, Local, decide
from topics.outcomes import Reason

DELAYS_S = (5, 15, 30)
TEN_A_SECOND = Limit(refill_units_per_s=10.0, cap_units=100.0)


def terms(units=10.0, patience_s=30.0, lane_wait_limit_s=120.0, is_back=False):
    return Terms(units, patience_s, lane_wait_limit_s, by_deadline=False, is_back=is_back)


def holding(units, limit=TEN_A_SECOND):
    return Local(units, 0.0, limit)


WAITS = Defer(5, Reason.BUDGET_UNAVAILABLE)
WAITS_ON = Defer(15, Reason.BUDGET_UNAVAILABLE)


@pytest.mark.parametrize(
    ("mode", "asked", "parts", "expected"),
    [
        ("open", terms(units=1e9, patience_s=0.0), [], Admit()),
        ("closed", terms(), [], WAITS),
        ("closed", terms(patience_s=5.0), [], WAITS),
        ("closed", terms(patience_s=4.9), [], WAITS),
        ("closed", terms(lane_wait_limit_s=4.9), [], WAITS),
        ("closed", terms(patience_s=0.0, lane_wait_limit_s=-1.0, is_back=True), [], WAITS_ON),
        ("closed", terms(units=0.0), [holding(100.0)], WAITS),
        ("local_share", terms(10.0), [holding(10.0), holding(10.0)], Admit()),
        ("local_share", terms(10.0), [holding(10.0), holding(9.9)], WAITS),
        ("local_share", terms(100.0, patience_s=0.0), [holding(100.0), holding(10.0)], WAITS),
        ("local_share", terms(100.0, patience_s=0.0), [holding(90.0), holding(100.0)], WAITS),
        ("local_share", terms(101.0, patience_s=0.0), [holding(100.0)], WAITS),
        ("local_share", terms(101.0), [holding(100.0)], WAITS),
    ],
)
def test_a_class_goes_by_its_mode(mode, asked, parts, expected):
    assert decide(mode, asked, parts, DELAYS_S) == expected


def test_a_budget_begins_an_outage_with_a_second_of_refill_and_never_above_its_cap():
    assert Local.begun(TEN_A_SECOND, 0.0).level_units == START_S * 10.0
    assert Local.begun(Limit(10.0, 4.0), 0.0).level_units == 4.0
    assert Local.begun(TEN_A_SECOND.part(0.25), 0.0).level_units == 2.5


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (1.0, 1.0, 50.0),  # 4 s at 10 a second on top of 10
        (0.5, 1.0, 30.0),  # what flowed in before it had the whole was at half
        (1.0, 0.5, 30.0),
        (1.0, 0.1, 10.0),  # never above the smaller bucket: 10 + 4 would be
        (0.0, 1.0, 0.0),
        (1.0, 0.0, 0.0),
    ],
)
def test_a_changed_part_creates_no_units(before, after, expected):
    local = Local(10.0, 0.0, TEN_A_SECOND.part(before))
    assert local.at(4.0, TEN_A_SECOND.part(after)).level_units == pytest.approx(expected)


def test_a_larger_part_holds_no_more_of_the_past_than_the_smaller_one_could():
    half = Local(10.0, 0.0, TEN_A_SECOND.part(0.5))
    assert half.at(1000.0, TEN_A_SECOND).level_units == 50.0


def test_a_clock_that_steps_back_takes_and_gives_nothing():
    local = Local(10.0, 100.0, TEN_A_SECOND)
    assert local.at(50.0, TEN_A_SECOND) == local


def test_a_second_outage_begins_with_no_more_than_the_first_left_and_a_second_of_refill():
    assert holding(90.0).again(1.0).level_units == START_S * 10.0
    assert holding(0.0).again(0.3).level_units == pytest.approx(3.0)


def test_a_paced_budget_lets_one_start_and_the_next_when_its_cost_has_flowed_off():
    paced = Local.begun(Limit(10.0, 100.0, paced=True), 0.0)
    assert paced.wait_s(40.0) == 0.0
    owing = paced.spend(40.0)
    assert owing.wait_s(1.0) == pytest.approx(4.0)
    assert owing.at(3.9, owing.limit).wait_s(1.0) == pytest.approx(0.1)
    assert owing.at(4.0, owing.limit).wait_s(1.0) == 0.0
    assert owing.at(1000.0, owing.limit).level_units == 0.0


def test_what_a_part_can_never_hold_has_no_wait():
    assert holding(100.0).wait_s(100.1) is None
    assert Local.begun(TEN_A_SECOND.part(0.0), 0.0).wait_s(1.0) is None
