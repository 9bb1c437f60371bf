"""Who goes when a count is lowered, and that nobody goes who has work."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.policy import removal
from autoscaler.policy.removal import DRAINED_COST, DRAINING_COST, Plan, Pod, Work


def pod(name, running=0, *, told=False, draining=False, ready=True, cost=0, **fields):
    work = Work(f"{name}-1-a", told, draining, running, running * 100.0)
    given = {"template": "t1", "is_assigned": True, "phase": "Running", "is_ready": ready, "has_started": True}
    return Pod(name, **{**given, "work": work, "deletion_cost": cost, **fields})


def unborn(name, **fields):
    return pod(name, work=None, has_started=False, phase="Pending", is_ready=False, **fields)


BUSY = [pod("a", 3), pod("b", 1), pod("c", 2)]


def test_as_many_as_wanted_stay_as_they_are():
    assert removal.plan(BUSY, 3, 3) == Plan(3)


def test_more_are_asked_for_at_once():
    assert removal.plan(BUSY, 3, 5) == Plan(5)


def test_the_one_with_least_work_is_told_first_and_the_count_stays():
    assert removal.plan(BUSY, 3, 2) == Plan(3, drain=("b-1-a",))


def test_a_drained_pod_gets_the_lowest_cost_and_goes():
    pods = [pod("a", 3), pod("b", 0, draining=True)]
    assert removal.plan(pods, 2, 1) == Plan(1, costs=(("b", DRAINED_COST),))


def test_one_that_was_told_and_is_idle_may_still_take_work_until_it_says_otherwise():
    pods = [pod("a", 3), pod("b", 0, told=True)]
    assert removal.plan(pods, 2, 1) == Plan(2, costs=(("b", DRAINING_COST),))


def test_a_long_job_is_waited_for():
    pods = [pod("a", 3), pod("b", 1, draining=True, ready=False, cost=DRAINING_COST)]
    assert removal.plan(pods, 2, 1) == Plan(2)
    assert removal.serving(pods, 2) == 1


def test_nobody_is_told_twice_over():
    pods = [pod("a", 1), pod("b", 5, told=True), pod("c", 2)]
    assert removal.plan(pods, 3, 2).drain == ()


def test_when_demand_returns_others_serve_in_place_of_those_that_leave():
    pods = [pod("a", 3), pod("b", 1, draining=True, cost=DRAINING_COST)]
    assert removal.plan(pods, 2, 2) == Plan(3)


def test_a_pod_that_is_about_to_be_deleted_is_not_made_up_for():
    pods = [pod("a", 3), pod("b", 0, draining=True, cost=DRAINED_COST)]
    assert removal.serving(pods, 1) == 1
    assert removal.plan(pods, 1, 1) == Plan(1)


def test_what_has_not_begun_goes_before_what_serves():
    pods = [pod("a", 0), unborn("b"), unborn("c", is_assigned=False)]
    assert removal.plan(pods, 4, 1) == Plan(1)
    assert removal.plan(pods, 4, 2) == Plan(2)
    assert removal.plan(pods, 4, 4) == Plan(4)


def test_a_drained_pod_behind_one_that_starts_waits_for_it():
    pods = [pod("a", 3), unborn("b"), pod("c", 0, draining=True, cost=DRAINED_COST)]
    assert removal.plan(pods, 3, 2) == Plan(3)


def test_a_busy_unready_pod_would_be_taken_before_a_drained_ready_one_so_both_stay():
    pods = [pod("a", 2, ready=False), pod("b", 0, draining=True, cost=DRAINED_COST)]
    assert removal.plan(pods, 2, 1) == Plan(2)


def test_a_pod_of_which_nothing_is_known_is_neither_told_nor_taken():
    pods = [pod("a", 0, work=None), pod("b", 9)]
    assert removal.plan(pods, 2, 1) == Plan(2, drain=("b-1-a",))
    assert removal.plan([pod("a", work=None)], 1, 0) == Plan(1)


def test_nothing_is_taken_in_the_middle_of_a_rollout():
    pods = [pod("a", 0, template="t1"), pod("b", 0, template="t2")]
    assert removal.plan(pods, 2, 1) == Plan(2)
    assert removal.plan(pods, 2, 3) == Plan(3)


def test_to_zero():
    assert removal.plan([pod("a", 0, draining=True, cost=DRAINED_COST)], 1, 0) == Plan(0)
    assert removal.plan([], 0, 0) == Plan(0)


STATES = st.sampled_from(["serves", "told", "draining", "unborn", "unknown"])


@st.composite
def fleets(draw):
    def one(name):
        state, running, ready = draw(STATES), draw(st.integers(0, 2)), draw(st.booleans())
        if state == "unborn":
            return unborn(name)
        found = pod(name, running, told=state == "told", draining=state == "draining", ready=ready)
        return replace(found, work=None) if state == "unknown" else found

    pods = [one(f"p{n}") for n in range(draw(st.integers(0, 6)))]
    return pods, len(pods) + draw(st.integers(0, 2))


@given(fleets(), st.integers(0, 8))
def test_whoever_kubernetes_takes_has_no_work_and_enough_are_left(fleet, wanted):
    """By the order of a ReplicaSet: unassigned, pending, unready, then by cost."""
    pods, count = fleet
    made = removal.plan(pods, count, wanted)
    costs = {each.name: each.deletion_cost for each in pods} | dict(made.costs)
    order = sorted(pods, key=lambda each: (each.is_assigned, each.phase == "Running", each.is_ready, costs[each.name]))
    taken = order[: max(0, len(pods) - made.count)]
    assert not [each for each in taken if each.has_started and not each.is_done]
    assert made.count >= wanted + sum(each.is_leaving and not each.is_done for each in pods) or made.count == count
    told = [each for each in pods if each.work and each.work.consumer in made.drain]
    assert not any(each.is_leaving for each in told)
    left = removal.serving(pods, count) - len(told)
    assert left >= min(wanted, removal.serving(pods, count))


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_fleet_that_obeys_comes_to_what_is_wanted(wanted):
    pods, count = [pod("a", 2), pod("b", 0), unborn("c")], 4
    for _ in range(12):
        made = removal.plan(pods, count, wanted)
        count = made.count
        pods = [
            replace(each, work=replace(each.work, is_draining=True, running_requests=0), is_ready=False)
            if each.work and each.work.consumer in made.drain
            else replace(each, deletion_cost=dict(made.costs).get(each.name, each.deletion_cost))
            for each in pods
        ]
        pods = removal._staying(pods, count)
    assert (count, len(pods)) == (wanted, wanted)
