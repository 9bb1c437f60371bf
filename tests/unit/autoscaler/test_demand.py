"""How many replicas the work needs."""

import pytest

from autoscaler.policy import demand
from autoscaler.policy.demand import Load

DRAIN_S = (5.0, 10.0, 100.0, 5.0)
EMPTY = (0.0,) * 4


def load(*waits, arrival=0.0, **more):
    return Load(len(waits), waits or (EMPTY,) * 4, arrival, 1000.0, **more)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (load(), 0.0),
        (load(arrival=2500.0), 2.5),
        (load((0.0, 5000.0, 0.0, 0.0)), 0.5),
        (load((2500.0, 0.0, 0.0, 0.0)), 0.5),  # the same in half of the time
        (load((0.0, 0.0, 50_000.0, 0.0)), 0.5),  # ten times as much, in ten times the time
        (load((2500.0, 0.0, 50_000.0, 0.0)), 0.525),  # all together is due when the last is
        (load((500.0, 4500.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1000.0)), 0.7),
    ],
)
def test_each_tier_is_drained_within_its_own_target(reading, expected):
    assert demand.present(reading, DRAIN_S) == pytest.approx(expected)


def test_a_partition_asks_for_one_consumer_at_most_and_is_called_hot():
    reading = load((0.0, 80_000.0, 0.0, 0.0), (0.0, 2000.0, 0.0, 0.0), arrival=500.0)
    assert demand.present(reading, DRAIN_S) == pytest.approx(0.5 + 1.0 + 0.2)
    assert demand.unbound(reading, DRAIN_S) == pytest.approx(0.5 + 8.0 + 0.2)
    assert demand.hot_partitions(reading, DRAIN_S) == 1


@pytest.mark.parametrize(
    ("more", "ordered", "cold_s", "expected"),
    [
        ({"ready": None}, 2, 40.0, 2.0 + 1.0),  # without telemetry what waits now counts
        ({"ready": 1}, 1, 0.0, 2.0 + 1.0),
        ({"ready": 2}, 2, 40.0, 2.0 + 1.0),  # as much comes as is served
        ({"ready": 2, "forecast_units_per_s": 2500.0}, 2, 40.0, 2.5 + 1.0 + 2.0),
        ({"ready": 1}, 1, 10.0, 2.0 + 1.0 + 1.0),
        ({"ready": 1}, 3, 10.0, 2.0 + 1.0),  # two on their way serve half of the time
    ],
)
def test_what_will_wait_when_an_order_serves_counts(more, ordered, cold_s, expected):
    reading = load(*[(0.0, 2500.0, 0.0, 0.0)] * 4, arrival=2000.0, **more)
    assert demand.soon(reading, (10.0,) * 4, cold_s, ordered) == pytest.approx(expected)


def test_what_is_drained_before_an_order_could_serve_asks_for_none():
    reading = load(*[(0.0, 2500.0, 0.0, 0.0)] * 4, arrival=2000.0, ready=4)
    assert demand.soon(reading, (10.0,) * 4, 5.0, 4) == pytest.approx(2.0)
    assert demand.soon(reading, (10.0,) * 4, 2.5, 4) == pytest.approx(2.0 + 0.5)


@pytest.mark.parametrize(
    ("needs", "arrival", "wanted", "ordered", "expected"),
    [
        ((0.7,) * 4, 0.0, 3, 4, 4),  # one of three would have two partitions
        ((0.5,) * 4, 0.0, 2, 4, 2),
        ((0.5,) * 4, 500.0, 2, 4, 4),
        ((0.9, 0.05, 0.05, 0.05), 0.0, 1, 4, 2),  # the full one with one of the others
        ((0.7,) * 4, 0.0, 2, 3, 2),  # two of three have as many as each of two
        ((5.0,) * 4, 0.0, 5, 4, 5),  # more are wanted
        ((), 0.0, 1, 4, 1),
    ],
)
def test_as_many_stay_as_the_partitions_of_those_who_go_need(needs, arrival, wanted, ordered, expected):
    waits = [(0.0, need * 10_000.0, 0.0, 0.0) for need in needs]
    reading = Load(1, tuple(waits), arrival, 1000.0)
    assert demand.fewest(reading, (10.0,) * 4, wanted, ordered) == expected
