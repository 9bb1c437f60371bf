"""How many replicas the policy asks for."""

import itertools
from dataclasses import replace

import pytest

from autoscaler.policy import evidence
from autoscaler.policy.demand import Load
from autoscaler.policy.replicas import Decision, Limits, Memory, Reason, decide, is_news, within_quota

LIMITS = Limits(
    min_replicas=1,
    max_replicas=8,
    partitions=8,
    drain_s=(10.0,) * 4,
    cold_start_s=0.0,
    up_after_s=1.0,
    down_after_s=10.0,
    idle_after_s=20.0,
    cooldown_s=5.0,
    tolerance_replicas=0.1,
    step_up_replicas=8,
    step_down_replicas=1,
)
HASTY = replace(LIMITS, up_after_s=0.0, down_after_s=0.0, idle_after_s=0.0, cooldown_s=0.0, step_down_replicas=8)


def load(waiting_units=0.0, arrival_units_per_s=0.0, lag_records=None, replica_units_per_s=1000.0, **more):
    """Work that waits on all eight partitions alike, of medium priority."""
    lag = lag_records if lag_records is not None else int(waiting_units > 0)
    waits = ((0.0, waiting_units / 8, 0.0, 0.0),) * 8
    return Load(
        lag, waits, arrival_units_per_s, replica_units_per_s, **{"running_units": 0.0, "held_units": 0.0, **more}
    )


class Simulation:
    """A pool whose count follows the decisions, one a second."""

    def __init__(self, limits=LIMITS, current=1):
        self.limits, self.current, self.memory, self.now_s = limits, current, Memory(), 1000.0
        self.reasons, self.counts = [], []

    def run(self, *loads):
        for each in loads:
            made = decide(each, self.current, self.memory, self.limits, self.now_s)
            self.current, self.memory = made.replicas, made.memory
            self.reasons.append(made.reason)
            self.counts.append(made.replicas)
            self.now_s += 1.0
        return self


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (load(lag_records=100, waiting_units=100 * 500.0), 5),  # a hundred huge requests
        (load(lag_records=100, waiting_units=100 * 5.0), 1),  # a hundred tiny ones
        (load(arrival_units_per_s=2500.0), 3),
        (load(arrival_units_per_s=2500.0, waiting_units=20_000.0), 5),
        (load(arrival_units_per_s=2500.0, replica_units_per_s=10_000.0), 1),
        (load(arrival_units_per_s=1050.0), 1),  # within the dead band
        (load(waiting_units=1e9), 8),
        (load(), 1),
    ],
)
def test_the_count_follows_cost_and_not_the_number_of_requests(reading, expected):
    assert decide(reading, 1, Memory(), HASTY, 0.0).replicas == expected


@pytest.mark.parametrize(
    ("partitions", "maximum", "reason"), [(3, 8, Reason.AT_PARTITIONS), (8, 3, Reason.AT_MAX), (3, 3, Reason.AT_MAX)]
)
def test_never_more_than_partitions_or_the_maximum(partitions, maximum, reason):
    limits = replace(HASTY, partitions=partitions, max_replicas=maximum)
    pool = Simulation(limits).run(*[load(waiting_units=1e9)] * 3)
    assert pool.counts == [3, 3, 3]
    assert pool.reasons == [Reason.SCALE_UP, reason, reason]


def test_a_missing_reading_holds_the_count_and_restarts_the_windows():
    pool = Simulation(current=4).run(*[load()] * 10, None, *[load()] * 10)
    assert pool.counts == [4] * 21
    assert pool.reasons[10] is Reason.LAG_UNAVAILABLE
    assert pool.run(load()).counts[-1] == 3


@pytest.mark.parametrize(("current", "expected"), [(0, 1), (9, 8)])
def test_bounds_hold_even_when_the_load_is_unknown(current, expected):
    assert decide(None, current, Memory(), LIMITS, 0.0).replicas == expected
    assert decide(load(), current, Memory(), LIMITS, 0.0).replicas == expected


def test_starting_the_minimum_is_no_change_to_cool_down_from():
    pool = Simulation(current=0).run(*[load(waiting_units=50_000.0)] * 3)
    assert pool.counts == [1, 5, 5]


def test_growth_waits_for_its_window_and_then_goes_all_the_way():
    pool = Simulation().run(*[load(waiting_units=50_000.0)] * 3)
    assert pool.counts == [1, 5, 5]
    assert pool.reasons[0] is Reason.UP_PENDING


def test_a_blip_changes_nothing():
    pool = Simulation().run(load(waiting_units=50_000.0), load(), load(waiting_units=50_000.0), load())
    assert pool.counts == [1] * 4


def test_shrinking_waits_longer_goes_by_steps_and_cools_down_in_between():
    pool = Simulation(current=4).run(*[load()] * 24)
    assert pool.counts[:11] == [4] * 10 + [3]
    assert pool.counts[11:] == [3] * 4 + [2] + [2] * 4 + [1] * 4
    assert Reason.COOLDOWN in pool.reasons


def test_the_cool_down_after_a_removal_also_delays_growth():
    pool = Simulation(current=2).run(*[load()] * 11)
    assert pool.counts[-1] == 1
    pool.run(*[load(waiting_units=50_000.0)] * 5)
    assert pool.counts[-5:] == [1, 1, 1, 1, 5]
    assert pool.reasons[-2] is Reason.COOLDOWN


def test_a_load_that_swings_around_a_boundary_does_not_flap():
    swing = [load(arrival_units_per_s=1950.0 + 100.0 * (i % 2)) for i in range(120)]
    pool = Simulation(current=2).run(*swing)
    assert set(pool.counts) == {2}


def test_bursts_shorter_than_the_down_window_cost_two_changes_at_most():
    bursts = [load(arrival_units_per_s=3500.0 if i % 8 < 3 else 200.0) for i in range(120)]
    counts = Simulation().run(*bursts).counts
    assert sum(a != b for a, b in itertools.pairwise(counts)) <= 2


@pytest.mark.parametrize("phase_s", [20, 60, 120])
def test_a_square_wave_turns_the_count_at_most_once_per_edge(phase_s):
    pool = Simulation(replace(LIMITS, down_after_s=30.0), current=2)
    pool.run(*[load(arrival_units_per_s=5440.0 if n // phase_s % 2 else 1360.0) for n in range(10 * phase_s)])
    moves = [after > before for before, after in itertools.pairwise(pool.counts) if before != after]
    assert moves[0]
    assert sum(one != other for one, other in itertools.pairwise(moves)) <= 9


def test_steps_bound_a_change():
    pool = Simulation(replace(HASTY, step_up_replicas=2)).run(load(waiting_units=1e9), load(waiting_units=1e9))
    assert pool.counts == [3, 5]


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (load(), 0),
        (load(lag_records=1), 1),  # something runs still
        (load(arrival_units_per_s=150.0), 1),
    ],
)
def test_only_an_empty_and_quiet_pool_loses_its_last_replica(reading, expected):
    assert decide(reading, 1, Memory(), replace(HASTY, min_replicas=0), 0.0).replicas == expected


def test_one_record_wakes_a_pool_of_nobody():
    limits = replace(HASTY, min_replicas=0)
    assert decide(load(lag_records=1, waiting_units=1.0), 0, Memory(), limits, 0.0).replicas == 1


def test_the_memory_stays_bounded():
    pool = Simulation().run(*[load()] * 500)
    assert len(pool.memory.wants) <= LIMITS.idle_after_s + 2


def test_nobody_is_left_only_after_the_longer_window_and_a_single_sign_of_life_starts_it_anew():
    limits = replace(LIMITS, min_replicas=0, cooldown_s=0.0)
    pool = Simulation(limits).run(*[load()] * 15, load(running_units=1.0), *[load()] * 20)
    assert pool.counts == [1] * 36
    assert pool.reasons[-1] is Reason.IDLE_PENDING
    assert pool.run(load()).counts[-1] == 0


@pytest.mark.parametrize("unknown", [{"running_units": None}, {"held_units": None}, {"arrival_units_per_s": 150.0}])
def test_who_may_be_busy_is_not_idle(unknown):
    limits = replace(HASTY, min_replicas=0)
    assert Simulation(limits).run(*[load(**unknown)] * 5).counts == [1] * 5


def test_the_first_record_wakes_a_pool_at_once_whatever_the_windows_and_the_cool_down():
    limits = replace(LIMITS, min_replicas=0, up_after_s=30.0)
    memory = Memory(changed_s=999.5)
    made = decide(load(lag_records=1, waiting_units=1.0), 0, memory, limits, 1000.0)
    assert (made.replicas, made.reason) == (1, Reason.FIRST_RECORD)
    assert made.memory.changed_s == 1000.0


def test_what_is_on_its_way_is_not_ordered_again():
    limits = replace(LIMITS, max_replicas=16, partitions=16, cold_start_s=30.0)
    waiting = {"waiting_units": 20_000.0, "arrival_units_per_s": 3200.0}
    assert decide(load(**waiting, ready=4), 4, Memory(), replace(limits, up_after_s=0.0), 0.0).replicas == 4
    assert Simulation(replace(limits, up_after_s=0.0), 1).run(load(**waiting, ready=1)).counts == [9]
    assert Simulation(replace(limits, up_after_s=0.0), 8).run(load(**waiting, ready=1)).counts == [8]


def test_a_rise_is_answered_before_it_is_there():
    rising = load(arrival_units_per_s=1900.0, forecast_units_per_s=2900.0)
    assert Simulation(HASTY, 2).run(rising).counts == [3]
    assert Simulation(HASTY, 3).run(rising).counts == [3]


def test_partitions_that_move_keep_everybody_for_a_cool_down():
    pool = Simulation(current=3).run(*[load()] * 9, load(is_moving=True), *[load()] * 6)
    assert pool.counts == [3] * 14 + [2] * 2
    assert pool.reasons[10] is Reason.MOVING


def test_more_consumers_than_busy_partitions_are_not_asked_for_and_it_says_so():
    one_hot = Load(9, ((0.0, 90_000.0, 0.0, 0.0), *((0.0,) * 4,) * 7), 500.0, 1000.0)
    pool = Simulation(HASTY, 1).run(one_hot, one_hot)
    assert pool.counts == [2, 2]
    assert pool.reasons == [Reason.SCALE_UP, Reason.HOT_PARTITION]
    assert evidence.of_made(decide(one_hot, 2, pool.memory, HASTY, 1010.0))["hot_partitions"] == 1


def test_work_that_is_gone_before_an_order_could_serve_is_no_hot_partition():
    spread = Load(9, ((0.0, 5000.0, 0.0, 0.0),) * 4, 0.0, 1000.0, ready=1)
    pool = Simulation(replace(HASTY, cold_start_s=30.0), 1).run(spread)
    assert (pool.counts, pool.reasons) == ([1], [Reason.STEADY])


@pytest.mark.parametrize(("granted", "expected", "changed_s"), [(5, 5, 0.0), (3, 3, 0.0), (2, 2, -9.0), (1, 1, 0.0)])
def test_a_quota_grants_what_it_can_and_only_a_change_cools_down(granted, expected, changed_s):
    memory = Memory(changed_s=-9.0)
    made = decide(load(waiting_units=50_000.0), 2, memory, HASTY, 0.0)
    given = within_quota(made, 2, memory, granted)
    assert (given.replicas, given.memory.changed_s) == (expected, changed_s)
    assert given.reason is (Reason.SCALE_UP if granted == 5 else Reason.AT_QUOTA)


@pytest.mark.parametrize(
    ("last", "now", "replicas", "expected"),
    [
        (None, Reason.STEADY, 2, False),
        (None, Reason.LAG_UNAVAILABLE, 2, True),
        (Reason.STEADY, Reason.UP_PENDING, 2, False),
        (Reason.UP_PENDING, Reason.SCALE_UP, 3, True),
        (Reason.SCALE_UP, Reason.STEADY, 2, False),
        (Reason.SCALE_UP, Reason.COOLDOWN, 2, True),
        (Reason.COOLDOWN, Reason.COOLDOWN, 2, False),
        (Reason.COOLDOWN, Reason.STEADY, 2, True),
        (Reason.LAG_UNAVAILABLE, Reason.LAG_UNAVAILABLE, 2, False),
        (Reason.LAG_UNAVAILABLE, Reason.STEADY, 2, True),
        (Reason.AT_MAX, Reason.AT_PARTITIONS, 2, True),
    ],
)
def test_changes_and_holds_are_news_but_each_only_once(last, now, replicas, expected):
    before = None if last is None else Decision(2, last, None, Memory())
    assert is_news(before, Decision(replicas, now, None, Memory()), current=2) is expected
