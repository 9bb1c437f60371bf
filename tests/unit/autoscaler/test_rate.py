"""How arrival and service rates are learnt."""

import pytest

from autoscaler.policy import rate
from autoscaler.policy.rate import Arrivals, Reading, Report, ServiceRate


def arrive(counts, mean_units, memory_s=5.0):
    state = None
    for second, count in enumerate(counts):
        state = rate.arrivals(state, Reading({"lane": count}, mean_units), memory_s, float(second))
    return state


def follow(reports):
    span, rates = None, []
    for report in reports:
        span, sample = rate.follow(span, report)
        rates += [sample] if sample is not None else []
    return rates


def test_arrivals_settle_on_records_per_second_times_their_cost():
    assert arrive(range(0, 1000, 10), {"lane": 20.0}).units_per_s == pytest.approx(200.0, rel=0.01)


def test_the_first_reading_says_nothing_of_the_rate():
    assert arrive([5000], {"lane": 20.0}).units_per_s == 0.0


def test_records_of_unknown_cost_leave_the_rate_as_it_was():
    before, now = Arrivals(300.0, Reading({"lane": 5}, {}), 0.0), Reading({"lane": 50}, {})
    assert rate.arrivals(before, now, 5.0, 1.0) == Arrivals(300.0, now, 1.0)


def test_a_quiet_lane_of_unknown_cost_is_no_obstacle():
    reading = Reading({"lane": 5, "quiet": 7}, {"lane": 10.0})
    assert rate.arrivals(Arrivals(300.0, reading, 0.0), reading, 5.0, 1.0).units_per_s < 300.0


def test_a_log_that_was_reset_or_a_clock_that_stands_still_adds_nothing():
    before = Arrivals(0.0, Reading({"lane": 500}, {}), 0.0)
    assert rate.arrivals(before, Reading({"lane": 3}, {"lane": 10.0}), 5.0, 1.0).units_per_s == 0.0
    assert rate.arrivals(before, Reading({"lane": 900}, {"lane": 10.0}), 5.0, 0.0) == before


@pytest.mark.parametrize(
    ("held", "refused", "expected"),
    [
        ((100.0, 400.0), (0.0, 0.0), 500.0),  # 200 onto the lane, 300 more before it
        ((400.0, 250.0), (0.0, 0.0), 50.0),  # of 200 that went onto the lane 150 were there before
        ((400.0, 100.0), (0.0, 0.0), 0.0),
        ((0.0, 0.0), (70.0, 90.0), 220.0),
        ((None, 400.0), (None, 90.0), 200.0),  # nothing to compare with
        ((400.0, None), (90.0, None), 200.0),
    ],
)
def test_what_waits_before_the_lanes_or_is_refused_arrived_too_and_what_moves_on_did_not(held, refused, expected):
    before, now = (Reading({"lane": n * 10}, {"lane": 20.0}, held[n], refused[n]) for n in (0, 1))
    made = rate.arrivals(Arrivals(0.0, before, 0.0), now, 5.0, 1.0)
    assert made.sample_units_per_s == pytest.approx(expected)


def test_a_consumer_is_measured_only_while_it_has_more_than_it_can_do():
    busy = [Report(float(s), 800.0 * s, queued_units=1.0) for s in range(20)]
    idle = [Report(float(s), 800.0 * s, queued_units=0.0) for s in range(20)]
    assert follow(busy) == pytest.approx([800.0, 800.0])
    assert follow(idle) == []


def test_a_moment_without_work_starts_the_measurement_anew():
    reports = [Report(float(s), 800.0 * s, queued_units=0.0 if s % 8 == 0 else 1.0) for s in range(60)]
    assert follow(reports) == []


def test_the_first_seconds_of_a_busy_span_do_not_count():
    """The engine fills: nothing is finished, then everything at its pace."""
    reports = [Report(float(s), 80.0 + 800.0 * max(0, s - 4), queued_units=1.0) for s in range(12)]
    assert follow(reports) == pytest.approx([800.0])


@pytest.mark.parametrize("cold_s", [3, 40])
def test_a_cold_start_does_not_count_however_long_it_takes(cold_s):
    """The model is loaded and the engine compiles while work waits for it already."""
    reports = [Report(float(s), 800.0 * max(0, s - cold_s), queued_units=1.0) for s in range(cold_s + 16)]
    assert follow(reports) == pytest.approx([800.0, 800.0])


def test_a_counter_that_fell_is_another_life_of_the_consumer():
    reports = [Report(float(s), 800.0 * (s % 9), queued_units=1.0) for s in range(30)]
    assert follow(reports) == []


def test_the_first_measurement_replaces_the_nominal_rate_and_later_ones_blend():
    first = rate.learn(ServiceRate(1000.0), 400.0, 1000.0)
    assert first == ServiceRate(400.0, is_measured=True)
    assert rate.learn(first, 800.0, 1000.0).units_per_s == pytest.approx(520.0)


def test_a_stuck_engine_does_not_make_the_rate_vanish():
    assert rate.learn(ServiceRate(1000.0), 0.0, 1000.0).units_per_s == pytest.approx(100.0)


def test_costs_blend():
    assert rate.blend_cost(None, 40.0) == 40.0
    assert rate.blend_cost(40.0, 80.0) == pytest.approx(60.0)
