from collections import Counter
from itertools import cycle

import pytest

from streams.fleet import Fleet
from streams.policy.sharing import Capacity
from streams.settings import Placement, Streams, StreamsSettings
from tests.support.builders import WALL_S
from tests.support.clock import FakeClock
from topics.telemetry import Telemetry

STALE_S = 5.0
LANE = "lanes.default.high.short"


@pytest.fixture
def clock():
    return FakeClock(WALL_S)


def made(clock, draws=(0.0, 0.5, 0.9), **section):
    turns = cycle(draws)
    settings = StreamsSettings(streams=Streams(placement=Placement(**section), telemetry_stale_s=STALE_S))
    return Fleet(settings, clock, draw=lambda: next(turns))


@pytest.fixture
def fleet(clock):
    return made(clock)


def note(fleet, consumer, clock, partitions=(), **fields):
    lanes = {LANE: list(partitions)} if partitions else {}
    defaults = {"pool": "default", "state": "ready", "at_s": clock.wall_s(), "lanes": lanes}
    fleet.note(Telemetry(consumer=consumer, **{**defaults, **fields}))


def test_capacity_is_the_sum_and_who_does_not_know_yet_counts_as_the_mean(fleet, clock):
    note(fleet, "a", clock, capacity_units_per_s=900.0, capacity_units=5000.0)
    note(fleet, "b", clock, capacity_units_per_s=1100.0, capacity_units=7000.0)
    note(fleet, "c", clock)
    assert fleet.capacity("default") == Capacity(3000.0, 18_000.0)


def test_capacity_is_unknown_while_nobody_knows_it(fleet, clock):
    assert fleet.capacity("default") == Capacity()
    note(fleet, "a", clock, capacity_units=5000.0)
    assert fleet.capacity("default") == Capacity(None, 5000.0)


def test_capacity_counts_only_ready_and_fresh_consumers_of_the_pool(fleet, clock):
    known = {"capacity_units_per_s": 1000.0, "capacity_units": 10.0}
    note(fleet, "old", clock, **known)
    clock.advance(STALE_S + 1)
    note(fleet, "a", clock, **known)
    note(fleet, "draining", clock, state="draining", **known)
    note(fleet, "elsewhere", clock, pool="cpu", **known)
    note(fleet, "left", clock, **known)
    note(fleet, "left", clock, state="gone")
    assert fleet.capacity("default") == Capacity(1000.0, 10.0)
    clock.advance(STALE_S + 1)
    assert fleet.capacity("default") == Capacity()


def test_work_goes_to_a_partition_of_the_better_owner(fleet, clock):
    note(fleet, "busy", clock, [0, 1], queued_units=500.0)
    note(fleet, "idle", clock, [2, 3])
    assert {fleet.place(LANE, 4, 1.0).partition for _ in range(8)} <= {2, 3}


def test_what_was_placed_counts_until_the_next_report(fleet, clock):
    for _ in range(2):
        note(fleet, "a", clock, [0])
        note(fleet, "b", clock, [1], queued_units=50.0)
        assert [fleet.place(LANE, 2, 30.0).partition for _ in range(3)] == [0, 0, 1]


def test_what_was_placed_on_one_lane_counts_on_all(fleet, clock):
    other = "lanes.default.low.long"
    note(fleet, "a", clock, lanes={LANE: [0], other: [0]})
    note(fleet, "b", clock, lanes={LANE: [1], other: [1]}, queued_units=50.0)
    assert fleet.place(LANE, 2, 60.0).partition == 0
    assert fleet.place(other, 2, 1.0).partition == 1


def test_the_weights_are_those_of_the_settings(clock):
    fleet = made(clock, queue_weight=0.0, latency_weight=0.0)
    note(fleet, "full", clock, [0], free_kv_tokens=1, total_kv_tokens=10)
    note(fleet, "free", clock, [1], free_kv_tokens=9, total_kv_tokens=10, queued_units=99.0)
    assert {fleet.place(LANE, 2, 1.0).partition for _ in range(6)} == {1}


def unknown(fleet, clock):
    pass


def stale(fleet, clock):
    note(fleet, "a", clock, [0])
    clock.advance(STALE_S + 1)


def ill(fleet, clock):
    note(fleet, "a", clock, [0], gpu_temperature_c=99.0)


@pytest.mark.parametrize(("arrange", "case"), [(unknown, "unknown"), (stale, "stale"), (ill, "none_healthy")])
def test_without_a_healthy_fresh_owner_work_is_spread_evenly_and_the_case_is_said(fleet, clock, arrange, case):
    arrange(fleet, clock)
    spots = [fleet.place(LANE, 4, 1.0) for _ in range(20)]
    assert Counter(spot.partition for spot in spots) == dict.fromkeys(range(4), 5)
    assert {spot.case for spot in spots} == {case}


def test_one_healthy_owner_and_a_choice_are_said(fleet, clock):
    note(fleet, "a", clock, [0])
    assert fleet.place(LANE, 2, 1.0).case == "only_one"
    note(fleet, "b", clock, [1])
    assert fleet.place(LANE, 2, 1.0).case == "chosen"


def test_an_owner_that_falls_silent_gets_nothing_more(fleet, clock):
    note(fleet, "silent", clock, [0])
    clock.advance(STALE_S - 1)
    note(fleet, "b", clock, [1], queued_units=900.0)
    assert fleet.place(LANE, 2, 1.0).partition == 0
    clock.advance(2)
    assert {fleet.place(LANE, 2, 1.0).partition for _ in range(5)} == {1}


def test_a_hung_owner_gets_nothing_and_a_busy_one_does(fleet, clock):
    full = {"inflight_requests": 64, "queued_units": 10.0, "inflight_units": 10.0}
    for second in range(40):
        clock.advance(1)
        note(fleet, "hung", clock, [0], **full)
        note(fleet, "busy", clock, [1], finished_units_total=second, queued_units=9000.0, inflight_requests=64)
    assert {fleet.place(LANE, 2, 1.0).partition for _ in range(5)} == {1}
    assert (fleet.is_served(LANE, 0), fleet.is_served(LANE, 1)) == (False, True)


def test_a_partition_that_moved_belongs_to_its_new_owner(fleet, clock):
    note(fleet, "a", clock, [0, 1])
    note(fleet, "b", clock, [1], gpu_temperature_c=99.0)
    assert {fleet.place(LANE, 2, 1.0).partition for _ in range(5)} == {0}


def test_a_partition_that_two_tell_of_is_the_one_s_that_told_last_whatever_it_told_before(fleet, clock):
    ill = {"gpu_temperature_c": 99.0}
    for consumer, fields, is_served in [("a", {}, True), ("b", ill, False), ("a", {}, True), ("b", ill, False)]:
        note(fleet, consumer, clock, [0], **fields)
        assert fleet.is_served(LANE, 0) is is_served


def test_a_partition_beyond_the_count_is_no_choice(fleet, clock):
    note(fleet, "a", clock, [7])
    assert {fleet.place(LANE, 2, 1.0).partition for _ in range(4)} == {0, 1}


def test_a_lane_that_its_owner_no_longer_tells_of_has_no_owner(fleet, clock):
    note(fleet, "short", clock, lanes={LANE: [0], "lanes.default.high.long": [0]})
    assert fleet.is_served("lanes.default.high.long", 0)
    note(fleet, "short", clock, lanes={LANE: [0]})
    assert not fleet.is_served("lanes.default.high.long", 0)
    assert fleet.is_served(LANE, 0)


def test_a_partition_is_served_by_a_fresh_healthy_owner_only(fleet, clock):
    assert not fleet.is_served(LANE, 0)
    note(fleet, "a", clock, [0])
    assert (fleet.is_served(LANE, 0), fleet.is_served(LANE, 1)) == (True, False)
    clock.advance(STALE_S + 1)
    assert not fleet.is_served(LANE, 0)


def test_dispatched_cost_is_counted_from_the_first_report_on_and_never_falls(fleet, clock):
    assert fleet.dispatched_units("default") is None
    note(fleet, "a", clock, dispatched_units_total=5000.0)
    assert fleet.dispatched_units("default") == 0.0
    note(fleet, "a", clock, dispatched_units_total=5100.0)
    note(fleet, "b", clock, dispatched_units_total=70.0)
    note(fleet, "b", clock, dispatched_units_total=80.0, state="gone")
    note(fleet, "a", clock, dispatched_units_total=0.0)
    assert fleet.dispatched_units("default") == 110.0
    clock.advance(STALE_S + 1)
    assert fleet.dispatched_units("default") is None


def test_a_pool_has_room_while_a_healthy_consumer_has_nothing_waiting(fleet, clock):
    assert not fleet.has_room("default")
    note(fleet, "busy", clock, queued_units=5.0)
    note(fleet, "hot", clock, gpu_temperature_c=99.0)
    assert not fleet.has_room("default")
    note(fleet, "idle", clock, [0])
    assert fleet.has_room("default")
    fleet.place(LANE, 1, 10.0)
    assert not fleet.has_room("default")


def test_telemetry_from_the_future_is_stale_in_its_time(fleet, clock):
    note(fleet, "a", clock, [0], at_s=clock.wall_s() + 3600, capacity_units_per_s=100.0, capacity_units=50.0)
    assert fleet.capacity("default").units_per_s == 100.0
    assert fleet.is_served(LANE, 0)
    clock.advance(STALE_S + 1)
    assert fleet.capacity("default").units_per_s is None
    assert not fleet.is_served(LANE, 0)
    assert {fleet.place(LANE, 2, 1.0).partition for _ in range(4)} == {0, 1}


def test_consumers_of_the_past_are_forgotten(fleet, clock):
    for life in range(50):
        note(fleet, f"life-{life}", clock, [0])
        clock.advance(600)
    assert len(fleet._members) <= 7
