from hypothesis import given
from hypothesis import strategies as st

from autoscaler.policy import evidence, replicas
from autoscaler.policy.demand import Load
from autoscaler.policy.replicas import Limits, Memory

LIMITS = Limits(
    min_replicas=0, max_replicas=6, partitions=5, drain_s=(5.0, 10.0, 60.0, 5.0), cold_start_s=4.0, up_after_s=2.0,
    down_after_s=8.0, idle_after_s=12.0, cooldown_s=3.0, tolerance_replicas=0.1, step_up_replicas=3,
    step_down_replicas=1,
)  # fmt: skip
LOADS = st.builds(
    Load,
    lag_records=st.integers(0, 3),
    waits=st.lists(st.tuples(*[st.sampled_from([0.0, 333.3333333333333, 20_000.0])] * 4), max_size=5).map(tuple),
    arrival_units_per_s=st.sampled_from([0.0, 10.0, 1900.123, 4000.0]),
    replica_units_per_s=st.sampled_from([1000.0, 333.3333333333333]),
    forecast_units_per_s=st.sampled_from([None, 0.0, 5000.1]),
    ready=st.sampled_from([None, 0, 2]),
    running_units=st.sampled_from([None, 0.0, 7.5]),
    held_units=st.sampled_from([None, 0.0, 7.5]),
    is_moving=st.booleans(),
)


@given(st.lists(st.tuples(st.none() | LOADS, st.sampled_from([0.1, 0.5, 1.0, 3.0])), max_size=60))
def test_each_decision_of_a_history_is_made_again_from_what_is_logged_of_it(rounds):
    memory, current, now_s = Memory(), 1, 1e6 / 3
    for load, gap_s in rounds:
        now_s += gap_s
        logged = evidence.of(load, current, memory, LIMITS, now_s)
        made = replicas.decide(load, current, memory, LIMITS, now_s)
        again = replicas.decide(*evidence.given({name: v for name, v in logged.items() if v is not None}))
        assert (again.replicas, again.reason, again.demand) == (made.replicas, made.reason, made.demand)
        memory, current = made.memory, made.replicas


def test_equal_wants_in_a_row_are_told_by_the_last_and_the_very_first():
    wants = tuple(replicas.Want(float(n), 1 if n < 8 else 2, 2) for n in range(10))
    told = evidence.of(None, 1, Memory(wants), LIMITS, 10.0)["wants"]
    assert told == "0.0:1:2 7.0:1:2 9.0:2:2"
