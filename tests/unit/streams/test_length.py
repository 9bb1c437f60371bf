import random

import pytest

from streams.policy import length
from streams.policy.length import Evidence, Limits, RecentCosts
from topics.records import Length

LIMITS = Limits(tokens=256, cost_units=200.0, service_s=2.0)
SHORT, LONG = Length.SHORT, Length.LONG


# Declared output, cost, service time of the kind; then declared, history, cost, hybrid.
CASES = [
    (None, 10.0, None, (SHORT, SHORT, SHORT, SHORT)),
    (256, 10.0, None, (SHORT, SHORT, SHORT, SHORT)),
    (257, 10.0, None, (LONG, LONG, SHORT, LONG)),
    (1, 200.1, None, (SHORT, SHORT, LONG, LONG)),
    (None, 200.1, None, (SHORT, SHORT, LONG, LONG)),
    (None, 200.0, None, (SHORT, SHORT, SHORT, SHORT)),
    (None, 10.0, 2.1, (SHORT, LONG, SHORT, LONG)),
    (None, 10.0, 2.0, (SHORT, SHORT, SHORT, SHORT)),
    (10, 10.0, 2.1, (SHORT, LONG, SHORT, SHORT)),
    (4000, 10.0, 1.0, (LONG, SHORT, SHORT, SHORT)),
    (4000, 10.0, 3.0, (LONG, LONG, SHORT, LONG)),
    (4000, 201.0, 1.0, (LONG, SHORT, LONG, LONG)),
]


@pytest.mark.parametrize(("declared", "cost_units", "service_s", "expected"), CASES)
def test_each_mode_believes_its_own_evidence(declared, cost_units, service_s, expected):
    evidence = Evidence(declared, cost_units, service_s)
    modes = ("declared", "history", "cost", "hybrid")
    assert tuple(length.classify(mode, evidence, LIMITS) for mode in modes) == expected


def filled(costs):
    recent = RecentCosts()
    for cost_units in costs:
        recent.add(cost_units)
    return recent


def test_no_quantile_is_known_before_enough_requests():
    assert filled([1.0] * 199).quantile_units(0.7) is None
    assert filled([1.0] * 200).quantile_units(0.7) is not None


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.7, 0.99])
def test_the_quantile_is_wrong_by_a_twentieth_at_most(quantile):
    rng = random.Random(5)
    costs = [rng.lognormvariate(4, 1.5) for _ in range(3000)]
    exact = sorted(costs)[round(quantile * len(costs)) - 1]
    assert filled(costs).quantile_units(quantile) == pytest.approx(exact, rel=0.05)


def test_the_quantile_follows_within_fifty_requests():
    recent = filled([1.0] * 200)
    before = recent.quantile_units(0.2)
    for _ in range(4800):
        recent.add(500.0)
    assert before < 1.1
    assert recent.quantile_units(0.2) > 400


def test_old_requests_are_forgotten():
    recent = filled([1000.0] * 5000)
    for _ in range(20_000):
        recent.add(1.0)
    assert recent.quantile_units(0.7) < 2.0


@pytest.mark.parametrize("cost_units", [0.0, 1e-9, 1e30])
def test_extreme_costs_are_counted_in_the_outer_buckets(cost_units):
    assert filled([cost_units] * 300).quantile_units(0.5) > 0
