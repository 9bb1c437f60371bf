"""The benchmarks still run: each part once, far too small for its figures to mean anything."""

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks.ground import Ground, Sizes

TINY = Sizes(
    admission_requests=4000,
    admission_rounds=1,
    latency_rounds=1,
    latency_round_s=0.5,
    latency_warm_s=0.2,
    saturation_requests=200,
)


@pytest.fixture
def ground(broker, redis_server, tmp_path):
    said = []
    return Ground(broker.bootstrap_servers, redis_server.url, broker.pid, redis_server.pid, tmp_path, said.append)


@pytest.mark.parametrize("names", [("admission",), ("latency",), ("saturation", "memory")], ids="+".join)
def test_each_part_of_the_benchmarks_gives_figures(ground, names):
    figures = benchmarks.measure(ground, TINY, names)
    assert list(figures) == list(names)
    for name, low in (("admission", "ratio"), ("latency", "ratio"), ("saturation", "per_s"), ("memory", "peak_mib")):
        assert name not in figures or figures[name][low]


def test_a_missed_ratio_is_said_with_both_numbers():
    figures = {"admission": {"ratio": 2.5, "ratio_at_least": 3.0}, "latency": {"ratio": 2.5, "ratio_at_most": 3.0}}
    assert benchmarks.missed_bounds(figures) == ["admission: 2.50 times, wanted at least 3"]
