import random

import pytest

from streams.policy import length
from streams.policy.length import RecentCosts
from topics.records import Length


@pytest.mark.parametrize(
    ("max_tokens", "cost_units", "expected"),
    [
        (None, 10.0, Length.SHORT),
        (256, 10.0, Length.SHORT),
        (257, 10.0, Length.LONG),
        (1, 200.1, Length.LONG),
        (None, 200.1, Length.LONG),
        (None, 200.0, Length.SHORT),
    ],
)
def test_long_is_what_declares_or_costs_more_than_its_limit(max_tokens, cost_units, expected):
    assert length.classify(max_tokens, cost_units, long_max_tokens=256, threshold_units=200.0) is expected


def filled(costs):
    recent = RecentCosts()
    for cost_units in costs:
        recent.add(cost_units)
    return recent


def test_no_quantile_is_known_before_enough_requests():
    assert filled([1.0] * 199).quantile_units(0.7) is None
    assert filled([1.0] * 200).quantile_units(0.7) is not None


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.7, 0.99])
def test_the_quantile_is_within_a_fifth_of_the_true_one(quantile):
    rng = random.Random(5)
    costs = [rng.lognormvariate(4, 1.5) for _ in range(3000)]
    exact = sorted(costs)[int(quantile * len(costs))]
    assert exact * 0.95 <= filled(costs).quantile_units(quantile) <= exact * 1.25


def test_old_requests_are_forgotten():
    recent = filled([1000.0] * 5000)
    for _ in range(20_000):
        recent.add(1.0)
    assert recent.quantile_units(0.7) < 2.0


@pytest.mark.parametrize("cost_units", [0.0, 1e-9, 1e30])
def test_extreme_costs_are_counted_in_the_outer_buckets(cost_units):
    assert filled([cost_units] * 300).quantile_units(0.5) > 0
