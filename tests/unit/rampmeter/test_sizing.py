"""Sizing by work against others', on a slice of `tests.benchmarks.autoscaling`: ratios with a margin."""

import math
from functools import cache

from rampmeter import workload
from rampmeter.simulation import scenario, workloads
from rampmeter.simulation.scenario import Fleet
from tests.benchmarks import autoscaling
from tests.benchmarks.autoscaling import Bench, Load

ENGINES = 4


@cache
def bench():
    rows = workload.generate_count(1500)
    asked = scenario.priced(rows[:500], Fleet().settings)
    return Bench(rows, scenario.saturation_per_s(asked, Fleet(engines=ENGINES)) / ENGINES, ENGINES)


def test_a_day_costs_far_fewer_gpu_seconds_than_its_peak_would_and_nearly_all_are_still_in_time():
    peak_per_s = autoscaling.PEAK_RATIO * ENGINES * bench().engine_per_s
    rates = [peak_per_s * (0.5 - 0.45 * math.cos(2 * math.pi * window / 40)) for window in range(40)]
    names = ("static", "ours", "keda-lag")
    found = autoscaling.compare(bench(), Load("day", workloads.by_rate(bench().rows, rates, 10.0, seed=1)), names)
    assert found["ours"]["engine_s_ratio"] < 0.8
    assert found["ours"]["goodput_ratio"] > 0.97 * found["static"]["goodput_ratio"]
    assert found["ours"]["engine_s_ratio"] < found["keda-lag"]["engine_s_ratio"]


def test_a_step_is_seen_within_five_seconds_and_a_hundred_tiny_requests_are_not_a_hundred_huge_ones():
    ours = autoscaling.compare(bench(), autoscaling.step(bench()), ["ours"])["ours"]
    assert ours["detect_s"] <= 5.0
    counts = autoscaling.hundred(bench(), ["ours"])
    assert counts["ours"]["huge"] > counts["ours"]["tiny"]
    assert max(counts["ours"].values()) <= ENGINES
