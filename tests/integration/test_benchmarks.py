"""The benchmarks still run: each part once, far too small for its figures to mean anything."""

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks.ground import Ground, Sizes

TINY = Sizes(
    admission_requests=4000,
    admission_rounds=1,
    admission_latency_s=0.5,
    # On a busy machine nothing at all is admitted in less, and half of nothing is no load.
    admission_drive_s=2.0,
    admission_warm_s=0.5,
    consumer_requests=60,
    consumer_rounds=1,
    consumer_lot=100,
    budgets_admitters=20,
    budgets_s=1.5,
    latency_rounds=1,
    latency_round_s=0.5,
    latency_warm_s=0.2,
    saturation_requests=200,
    soak_s=4.0,
    soak_warm_s=1.0,
    soak_per_s=20.0,
)


@pytest.fixture
def ground(broker, redis_server, tmp_path):
    said = []
    return Ground(broker.bootstrap_servers, redis_server.url, broker.pid, redis_server.pid, tmp_path, said.append)


SHOWN = {
    "admission": "ratio_forward",
    "admission_latency": "p99_ms",
    "consumer": "chunk_us",
    "budgets": "admitted_per_s",
    "latency": "ratio",
    "saturation": "per_s",
    "memory": "peak_mib",
    "soak": "mib_per_min",
}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("admission",), marks=pytest.mark.slow),
        pytest.param(("admission_latency",), marks=pytest.mark.slow),
        ("budgets",),
        pytest.param(("latency",), marks=pytest.mark.slow),
        pytest.param(("saturation", "memory"), marks=pytest.mark.slow),
        pytest.param(("soak",), marks=pytest.mark.slow),
    ],
    ids="+".join,
)
def test_each_part_of_the_benchmarks_gives_figures(ground, names):
    figures = benchmarks.measure(ground, TINY, names)
    assert list(figures) == list(names)
    for name in names:
        assert figures[name][SHOWN[name]]


def test_a_missed_bound_is_said_with_both_numbers():
    figures = {
        "admission": {"ratio": 2.5, "ratio_at_least": 3.0, "ratio_forward": 0.7, "ratio_forward_at_least": 0.8},
        "latency": {"ratio": 2.5, "ratio_at_most": 3.0},
        "admission_latency": {"p99_ms": 61.0, "p99_ms_at_most": 50.0},
    }
    assert benchmarks.missed_bounds(figures) == [
        "admission: 2.50 times, wanted at least 3",
        "admission: ratio_forward 0.70, wanted at least 0.8",
        "admission_latency: p99_ms 61.00, wanted at most 50",
    ]
