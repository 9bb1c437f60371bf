"""What `top` makes of backlogs and reports."""

import pytest

from autoscaler.backlog import Backlog, LaneBacklog
from rampmeter.top import making
from rampmeter.top.making import Pace
from topics.records import Length, Tier
from topics.telemetry import Telemetry

NOW_S = 1000.0


def lane(tier=Tier.HIGH, length=Length.SHORT, *, lag=0, units=0.0, appended=0, mean=10.0):
    return LaneBacklog(tier, length, f"lanes.{tier}.{length}", lag, units, 1.5 * bool(lag), appended, mean)


def backlog(*lanes):
    return Backlog("default", lanes)


def told(consumer="g1", *, pool="default", state="ready", at_s=NOW_S, **fields):
    return Telemetry(consumer=consumer, pool=pool, state=state, at_s=at_s, **fields)


def pace(*readings):
    """Of (time, appended, lag)."""
    made = Pace()
    for at_s, appended, lag in readings:
        made.note([backlog(lane(appended=appended, lag=lag))], at_s)
    return made


def test_rates_follow_from_two_readings_and_are_unknown_before():
    assert pace((0.0, 100, 5)).of("lanes.high.short") is None
    assert pace((0.0, 100, 5), (2.0, 120, 15)).of("lanes.high.short") == (10.0, 5.0)
    assert pace((0.0, 100, 5), (2.0, 120, 15)).of("lanes.low.short") is None


def test_rates_are_those_of_the_last_seconds():
    slow = [(float(n), 0, 0) for n in range(30)]
    fast = [(30.0 + n, 7 * (n + 1), 0) for n in range(11)]
    assert pace(*slow, *fast).of("lanes.high.short") == (7.0, 7.0)


def test_a_lane_that_could_not_be_read_now_has_no_rate():
    made = pace((0.0, 100, 5), (2.0, 120, 15))
    made.note([], 4.0)
    assert made.of("lanes.high.short") is None
    assert making.lanes("default", None, 5.0, made)[0].lag_records is None
    assert len(making.lanes("default", None, 5.0, made)) == 8


def test_the_time_to_drain_is_by_what_the_ready_consumers_serve_and_unknown_while_that_is():
    read = backlog(lane(lag=3, units=300.0), lane(Tier.LOW))
    serving = making.consumers(
        [told(capacity_units_per_s=40.0), told("g2"), told("g3", state="draining", capacity_units_per_s=9.0)], NOW_S
    )
    row = making.pool("default", read, serving, Pace())
    assert (row.capacity_units_per_s, row.drain_s) == (80.0, 3.75)
    assert [one.drain_s for one in making.lanes("default", read, 80.0, Pace())] == [3.75, 0.0]
    unknown = making.pool("default", read, making.consumers([told()], NOW_S), Pace())
    assert (unknown.ready, unknown.lag_records, unknown.drain_s) == (1, 3, None)


def test_what_is_not_read_is_unknown_and_not_nobody():
    blind = making.pool("default", None, None, Pace())
    assert (blind.ready, blind.silent, blind.lag_records, blind.drain_s) == (None, None, None, None)
    nobody = making.pool("default", backlog(lane()), (), Pace())
    assert (nobody.ready, nobody.lag_records, nobody.drain_s, nobody.arrived_units_per_s) == (0, 0, 0.0, None)


def test_arriving_cost_is_unknown_while_that_of_a_lane_is():
    made = Pace()
    for at_s, appended in ((0.0, 0), (1.0, 4)):
        made.note([backlog(lane(appended=appended), lane(Tier.LOW, appended=appended))], at_s)
    assert making.pool("default", backlog(lane(), lane(Tier.LOW)), (), made).arrived_units_per_s == 80.0
    assert making.pool("default", backlog(lane(), lane(Tier.LOW, mean=None)), (), made).arrived_units_per_s is None


@pytest.mark.parametrize(
    ("report", "state"),
    [
        (told(), "ready"),
        (told(state="draining"), "draining"),
        (told(intake="closed by memory"), "closed"),
        (told(at_s=NOW_S - 6), "silent"),
        (told(state="draining", at_s=NOW_S - 6), "silent"),
        (told(state="gone", at_s=NOW_S - 30), "gone"),
    ],
)
def test_the_state_of_a_consumer(report, state):
    (one,) = making.consumers([report], NOW_S)
    assert one.state == state


def test_who_left_or_is_silent_for_long_is_not_shown():
    assert making.consumers([told(state="gone", at_s=NOW_S - 61), told("g2", at_s=NOW_S - 601)], NOW_S) == ()


def test_what_a_consumer_does_not_tell_is_unknown():
    (one,) = making.consumers([told(lanes={"a": [0, 1], "b": [3]}, free_kv_tokens=25, total_kv_tokens=100)], NOW_S)
    assert (one.partitions, one.kv_used_ratio) == (3, 0.75)
    assert (one.gpu_memory_used_ratio, one.gpu_busy_ratio, one.gpu_temperature_c) == (None, None, None)
