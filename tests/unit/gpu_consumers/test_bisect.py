import math
import random

import pytest

from gpu_consumers.policy.bisect import Trials, judge


def ids(count):
    return frozenset(f"r{n:02}" for n in range(count))


def find(failed, causes, *, beside=frozenset()):
    """Play on until all causes are found; what was charged, in order, and the number of failures."""
    trials, charged, failures = Trials(), [], 0
    while failed:
        failures += 1
        verdict = judge(trials, failed)
        trials, failed = verdict.trials, frozenset()
        charged += verdict.charged
        while trials.groups and not failed:
            assert len(trials.suspects) == sum(map(len, trials.groups)), "an id is in two groups"
            running = trials.running
            if running & causes:
                failed = running | beside
            else:
                trials = trials.keep(trials.suspects - running)
    assert trials == Trials()
    return charged, failures


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 64])
def test_one_cause_is_found_alone_after_a_logarithm_of_failures(count):
    for cause in ids(count):
        charged, failures = find(ids(count), {cause})
        assert charged == [cause]
        assert failures <= 1 + math.ceil(math.log2(count))


def test_who_fails_alone_is_charged_at_once():
    assert judge(Trials(), ids(1)).charged == ids(1)
    assert judge(Trials(), ids(1)).trials == Trials()


def test_several_causes_are_all_found_and_nobody_else():
    draw = random.Random(5)
    for _ in range(200):
        count = draw.randint(2, 32)
        causes = frozenset(draw.sample(sorted(ids(count)), draw.randint(1, min(4, count))))
        charged, failures = find(ids(count), causes)
        assert sorted(charged) == sorted(causes)
        assert failures <= 1 + len(causes) * (1 + math.ceil(math.log2(count)))


def test_who_runs_beside_suspects_is_spared_once_and_then_tried_after_them():
    fresh = frozenset({"fresh"})
    trials = judge(Trials(), ids(4)).trials
    first = judge(trials, trials.running | fresh).trials
    assert not fresh & first.suspects
    second = judge(first, first.running | fresh).trials
    assert second.groups[-1] == fresh
    assert fresh & second.running == frozenset()


def test_a_cause_that_keeps_coming_in_beside_suspects_is_found():
    trials, charged = Trials(), []
    failed = ids(8)
    for _ in range(20):
        verdict = judge(trials, failed)
        trials = verdict.trials
        charged += verdict.charged
        if "fresh" in charged:
            break
        failed = trials.running | ({"fresh"} if "fresh" not in trials.suspects else frozenset())
    assert "fresh" in charged


def test_those_of_a_group_who_did_not_fail_stay_suspects():
    trials = judge(Trials(), ids(8)).trials
    ran = frozenset(sorted(trials.running)[:2])
    after = judge(trials, ran).trials
    assert after.suspects == ids(8)
    assert after.running < ran


def test_a_group_that_is_gone_makes_room_for_the_next_and_the_spared_are_forgotten_at_the_end():
    trials = judge(Trials(), ids(4)).trials
    trials = judge(trials, trials.running | {"fresh"}).trials
    assert trials.keep({"r02"}).running == frozenset({"r02"})
    assert trials.keep(()) == Trials()


def test_one_that_is_known_is_tried_by_itself_once():
    trials = Trials().accuse("a").accuse("b").accuse("a")
    assert trials.groups == (frozenset({"a"}), frozenset({"b"}))
