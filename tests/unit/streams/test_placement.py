from collections import Counter

import pytest

from streams.policy.placement import Owner, choose_partition


def owner(load=0.0, **fields):
    return Owner(consumer=f"c{load}", load_units=load, **{"ready": True, **fields})


def test_the_least_loaded_owner_gets_the_work():
    assert {choose_partition({0: owner(5), 1: owner(2), 2: owner(9)}, 3, turn) for turn in range(9)} == {1}


def test_equal_owners_take_turns():
    chosen = Counter(choose_partition({0: owner(1), 1: owner(1)}, 2, turn) for turn in range(10))
    assert chosen == {0: 5, 1: 5}


def test_without_telemetry_all_partitions_take_turns():
    assert Counter(choose_partition({}, 4, turn) for turn in range(8)) == dict.fromkeys(range(4), 2)


SICK = [
    {"ready": False},
    {"gpu_memory_used_ratio": 0.98},
    {"gpu_temperature_c": 90.0},
]


@pytest.mark.parametrize("sickness", SICK, ids=str)
def test_a_sick_owner_gets_nothing_while_another_is_well(sickness):
    assert {choose_partition({0: owner(0, **sickness), 1: owner(99)}, 2, turn) for turn in range(4)} == {1}


def test_when_all_are_sick_the_work_is_spread():
    sick = {0: owner(ready=False), 1: owner(ready=False)}
    assert {choose_partition(sick, 2, turn) for turn in range(4)} == {0, 1}


def test_what_is_not_measured_is_no_sickness():
    assert owner(gpu_memory_used_ratio=None, gpu_temperature_c=None).healthy()


def test_an_owner_of_a_partition_that_does_not_exist_is_ignored():
    assert choose_partition({7: owner()}, 2, 0) in {0, 1}
