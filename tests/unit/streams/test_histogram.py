import json
import random

import pytest

from streams.policy.histogram import Histogram


def filled(values, weight=1):
    made = Histogram()
    for value in values:
        made.add(value, weight)
    return made


@pytest.mark.parametrize("quantile", [0.01, 0.5, 0.9, 0.99])
def test_a_quantile_is_never_too_small_and_at_most_nine_percent_too_large(quantile):
    rng = random.Random(3)
    values = [rng.lognormvariate(2, 2) for _ in range(5000)]
    exact = sorted(values)[round(quantile * len(values)) - 1]
    assert exact <= filled(values).quantile(quantile) <= exact * 1.091


def test_the_centre_of_a_quantile_is_near_it_on_both_sides():
    rng = random.Random(4)
    values = [rng.lognormvariate(0, 1) for _ in range(5000)]
    assert filled(values).centre(0.5) == pytest.approx(sorted(values)[2499], rel=0.05)


def test_merging_stored_rows_is_as_counting_all_values_in_one():
    rng = random.Random(5)
    values = [rng.expovariate(0.01) for _ in range(600)]
    rows = [json.loads(json.dumps(filled(values[start::3]).row())) for start in range(3)]
    assert Histogram.of(*rows) == filled(values)


def test_a_weight_counts_like_as_many_values():
    weighted = filled([1.0] * 9)
    weighted.add(100.0, 10)
    assert weighted.centre(0.5) > 90


@pytest.mark.parametrize("value", [0, -1.0, 1e-300, 1e300])
def test_values_out_of_range_are_counted_and_make_no_more_buckets(value):
    made = filled([value] * 3)
    assert made.total == 3
    assert made.quantile(0.5) > 0
    many = filled([10.0**exponent for exponent in range(-300, 300)])
    assert len(many.weights) <= 513


def test_an_empty_one_knows_no_quantile():
    assert Histogram().quantile(0.5) is None


def test_fading_forgets_half_and_keeps_the_quantile():
    made = filled([1.0, 1.0, 8.0, 8.0])
    before = made.quantile(0.4)
    made.fade()
    assert (made.total, made.quantile(0.4)) == (2, before)
