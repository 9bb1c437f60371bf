"""What is expected to arrive while a replica starts."""

import random

import pytest

from autoscaler.policy import sensing
from autoscaler.policy.forecast import LEAST_POINTS, History, Point, mean_ahead, remember
from autoscaler.policy.rate import Reading
from autoscaler.policy.sensing import Rules


def seen(rates, window_s=60.0):
    history = History()
    for second, rate in enumerate(rates):
        history = remember(history, Point(float(second), rate, 1.0), window_s)
    return history


def test_too_little_is_unknown_and_not_zero():
    assert mean_ahead(seen([100.0] * (LEAST_POINTS - 1)), 30.0, 100.0) is None
    assert mean_ahead(seen([100.0] * LEAST_POINTS), 30.0, 100.0) == pytest.approx(100.0)


@pytest.mark.parametrize(("slope", "expected"), [(10.0, 590.0 + 150.0), (-10.0, 705.0), (0.0, 500.0)])
def test_a_rise_goes_on_to_the_middle_of_the_next_cold_start_and_a_fall_does_not(slope, expected):
    rates = [500.0 + slope * (second - 50) for second in range(60)]
    assert mean_ahead(seen(rates), 30.0, rates[-1]) == pytest.approx(expected)


def test_noise_is_no_trend():
    rng = random.Random(1)
    forecasts = []
    for _ in range(50):
        rates = [rng.gauss(1000.0, 300.0) for _ in range(60)]
        forecasts.append(mean_ahead(seen(rates), 30.0, 1000.0))
    assert sum(abs(ahead - 1000.0) > 150.0 for ahead in forecasts) <= 1


def test_a_step_is_not_continued_beyond_twice_what_arrives():
    assert mean_ahead(seen([100.0] * 30 + [400.0] * 30), 300.0, 400.0) == pytest.approx(800.0)


def test_the_memory_is_as_long_as_its_window():
    assert len(seen([1.0] * 500).points) == 60


def test_a_round_that_follows_at_once_on_a_slow_one_is_no_flood():
    rules = Rules(nominal_units_per_s=1000.0, arrival_memory_s=5.0, forecast_window_s=60.0, cold_start_s=5.0)
    known = sensing.nothing(rules)
    for second in range(30):
        # All of the slow round's work came before it was read, and is seen only by the one 10 ms later.
        now_s, records = (second - 0.99, 100 * second) if second == 20 else (float(second), 100 * second)
        known = sensing.arrived(known, Reading({"lane": records}, {"lane": 10.0}), rules, now_s)
    assert known.forecast_units_per_s == pytest.approx(1000.0, rel=0.05)
