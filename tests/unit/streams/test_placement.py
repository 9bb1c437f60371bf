import heapq
import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from streams.policy import placement
from streams.policy.placement import Candidates, Case, Owner, Rules
from streams.settings import Placement
from topics.telemetry import Telemetry

RULES = Rules(**Placement().model_dump(), stale_s=5.0)
NOW_S = 1000.0


def owner(name="c", load=0.0, **fields):
    return Owner(
        **{"consumer": name, "partitions": (0,), "at_s": NOW_S, "moved_s": NOW_S, "load_units": load, **fields}
    )


def telemetry(**fields):
    return Telemetry(**{"consumer": "c", "pool": "default", "state": "ready", "at_s": NOW_S, **fields})


def score(rules=RULES, **owners):
    named = [owner(name, **fields) for name, fields in owners.items()]
    return dict(zip(owners, placement.scores(*named, rules), strict=True))


def choose(*given):
    return placement.choose(*given).owner


def test_the_score_is_the_weighted_sum_of_parts_relative_to_the_largest():
    found = score(
        a={"free_memory_ratio": 0.8, "load": 100.0, "latency_s": 1.0},
        b={"free_memory_ratio": 0.4, "load": 400.0, "latency_s": 4.0},
    )
    assert found == {"a": 1 * 1 + 2 * 0.75 + 1 * 0.75, "b": 1 * 0.5 + 2 * 0 + 1 * 0}


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"load": 1.0}, {"load": 2.0}),
        ({"free_memory_ratio": 0.9}, {"free_memory_ratio": 0.2}),
        ({"latency_s": 1.0}, {"latency_s": 3.0}),
        ({"load": 2.0, "units_per_s": 300.0}, {"load": 1.0, "units_per_s": 100.0}),
    ],
    ids=["queue", "memory", "latency", "queue in seconds"],
)
def test_each_part_alone_decides(better, worse):
    found = score(a=better, b=worse)
    assert found["a"] > found["b"]


@pytest.mark.parametrize("part", ["free_memory_ratio", "latency_s", "units_per_s"])
def test_what_is_unknown_of_one_owner_is_neutral(part):
    found = score(a={part: 0.3, "load": 5.0}, b={"load": 5.0})
    assert found["a"] == found["b"]


def test_a_weight_of_zero_takes_a_part_out():
    found = score(replace(RULES, queue_weight=0.0), a={"load": 900.0}, b={})
    assert found["a"] == found["b"]


def test_what_was_placed_since_the_report_counts_as_queued():
    among = [owner("a", 10.0), owner("b", 40.0)]
    choice = placement.choose(among, {"a": 50.0}, RULES, (0.0, 0.0))
    assert (choice.owner.consumer, [o.load_units for o in choice.drawn]) == ("b", [60.0, 40.0])


@pytest.mark.parametrize("draws", [(0.0, 0.0), (0.0, 0.99), (0.34, 0.0), (0.99, 0.99)])
def test_two_different_owners_are_drawn_and_the_better_wins(draws):
    among = [owner("a", 1.0), owner("b", 2.0), owner("c", 3.0)]
    first = int(draws[0] * 3)
    others = [n for n in range(3) if n != first]
    best = min(first, others[int(draws[1] * 2)])
    assert choose(among, {}, RULES, draws) is among[best]


def test_equal_owners_share_by_the_first_draw():
    among = [owner("a"), owner("b"), owner("c"), owner("d")]
    rng = random.Random(1)
    got = Counter(choose(among, {}, RULES, (rng.random(), rng.random())).consumer for _ in range(4000))
    assert all(900 < count < 1100 for count in got.values())


ILL = [
    {"ready": False},
    {"memory_used_ratio": 0.98},
    {"temperature_c": 90.0},
    {"moved_s": NOW_S - 31},
]


@pytest.mark.parametrize("illness", ILL, ids=str)
def test_an_ill_owner_gets_nothing_while_another_is_well(illness):
    found = placement.candidates([owner("ill", **illness), owner("well", 99.0)], NOW_S, RULES)
    assert (found.case, [o.consumer for o in found.owners]) == (Case.ONLY_ONE, ["well"])


@pytest.mark.parametrize("illness", ILL, ids=str)
def test_when_all_are_ill_there_is_no_candidate(illness):
    assert placement.candidates([owner("a", **illness)], NOW_S, RULES).case is Case.NONE_HEALTHY


CASES = [
    ([], Case.UNKNOWN, 0),
    ([owner("a", at_s=NOW_S - 6)], Case.STALE, 0),
    ([owner("a", at_s=NOW_S - 6), owner("b")], Case.ONLY_ONE, 1),
    ([owner("a", partitions=()), owner("b")], Case.ONLY_ONE, 1),
    ([owner("a"), owner("b"), owner("c", ready=False)], Case.CHOSEN, 2),
]


@pytest.mark.parametrize(("owners", "case", "count"), CASES, ids=[str(case) for _, case, _ in CASES])
def test_the_case_names_what_was_known(owners, case, count):
    found = placement.candidates(owners, NOW_S, RULES)
    assert (found.case, len(found.owners)) == (case, count)


def test_candidates_hold_until_the_first_fresh_report_is_stale():
    found = placement.candidates([owner("a", at_s=NOW_S - 3), owner("b"), owner("c", at_s=NOW_S - 9)], NOW_S, RULES)
    assert found.until_s == NOW_S + 2
    assert placement.candidates([owner("a", at_s=found.until_s - 5)], found.until_s, RULES).case is Case.ONLY_ONE
    assert Candidates(Case.UNKNOWN).until_s == math.inf


@pytest.mark.parametrize(
    ("fields", "free"),
    [
        ({"free_kv_tokens": 30, "total_kv_tokens": 120, "gpu_memory_used_ratio": 0.9}, 0.25),
        ({"free_kv_tokens": 30, "gpu_memory_used_ratio": 0.9}, pytest.approx(0.1)),
        ({"free_kv_tokens": 0, "total_kv_tokens": 0}, None),
        ({}, None),
    ],
)
def test_free_memory_is_that_of_the_kv_cache_else_of_the_gpu_else_unknown(fields, free):
    assert placement.owner(telemetry(**fields), [0], NOW_S).free_memory_ratio == free


BUSY = {"inflight_requests": 4, "queued_units": 9.0, "finished_units_total": 7.0}


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({}, False),
        ({"finished_units_total": 8.0}, True),
        ({"queued_units": 0.0}, True),
        ({"inflight_requests": 0}, True),
    ],
    ids=["nothing finished while work waits", "something finished", "nothing waits", "nothing runs"],
)
def test_progress_is_what_finishes_or_a_queue_that_is_empty(change, moved):
    before, now = telemetry(**BUSY), telemetry(**{**BUSY, "at_s": NOW_S + 1, **change})
    assert placement.last_moved_s(500.0, before, now) == (NOW_S + 1 if moved else 500.0)
    assert placement.last_moved_s(500.0, None, now) == NOW_S + 1


def rank_by_load(among, placed, rules, draws):
    """The rule that was here before: the least loaded of all, equals by chance."""
    loads = [o.load_units + placed.get(o.consumer, 0.0) for o in among]
    best = [o for o, load in zip(among, loads, strict=True) if load <= min(loads)]
    return best[int(draws[0] * len(best))]


def at_random(among, placed, rules, draws):
    return among[int(draws[0] * len(among))]


def placed_between_reports(rule, owners, count, cost=lambda rng: 1.0, seed=1):
    rng, placed = random.Random(seed), Counter()
    for _ in range(count):
        placed[rule(owners, placed, RULES, (rng.random(), rng.random())).consumer] += cost(rng)
    return [placed[o.consumer] for o in owners]


@pytest.mark.parametrize("owners", [2, 4, 8, 16])
def test_a_thousand_placements_on_one_report_leave_no_herd(owners):
    """Bound: the fullest is at most log2(log2 n) + 3 jobs over the mean, however many are placed."""
    got = placed_between_reports(choose, [owner(str(n)) for n in range(owners)], 1000)
    assert max(got) - 1000 / owners <= math.log2(math.log2(owners)) + 3
    assert min(got) > 0.9 * 1000 / owners


def test_an_owner_that_looks_best_is_filled_up_to_the_others_and_then_shares():
    among = [owner("idle", 0.0), *(owner(f"busy{n}", 300.0) for n in range(3))]
    idle, *busy = placed_between_reports(choose, among, 1000)
    assert 250 + 225 - 30 < idle < 250 + 225 + 30  # all end at the same load: 1900 units over four owners
    assert max(busy) - min(busy) < 30


@pytest.mark.parametrize("owners", [8, 16])
def test_two_choices_beat_chance_in_the_largest_load(owners):
    among = [owner(str(n)) for n in range(owners)]

    def excess(rule):
        cost = lambda rng: rng.expovariate(1.0)  # noqa: E731
        runs = [placed_between_reports(rule, among, 500, cost, seed) for seed in range(10)]
        return sum(max(got) - sum(got) / owners for got in runs)

    assert excess(choose) < excess(at_random) / 3


def test_a_slow_owner_gets_less_in_proportion_to_its_rate():
    among = [owner("slow", units_per_s=500.0), *(owner(f"fast{n}", units_per_s=1000.0) for n in range(3))]
    slow, *fast = placed_between_reports(choose, among, 1000)
    assert slow == pytest.approx(sum(fast) / 3 / 2, rel=0.1)


def waits(rule, owners, workers, load_ratio=0.9, jobs=5000, report_s=0.5, seed=3):
    """Waits in a queueing simulation: Poisson arrivals at workers that see reports and only their own placements."""
    rng = random.Random(seed)
    free_at = dict.fromkeys((str(n) for n in range(owners)), 0.0)  # in seconds; a job takes 0.1 s in the mean
    reported, placed = dict.fromkeys(free_at, 0.0), [Counter() for _ in range(workers)]
    now_s, report_due_s, found = 0.0, 0.0, []
    for _ in range(jobs):
        now_s += rng.expovariate(load_ratio * owners / 0.1)
        if now_s >= report_due_s:
            reported = {name: max(0.0, free_s - now_s) for name, free_s in free_at.items()}
            placed = [Counter() for _ in range(workers)]
            report_due_s = now_s + report_s
        among = [owner(name, left) for name, left in reported.items()]
        mine, took_s = placed[rng.randrange(workers)], rng.expovariate(1 / 0.1)
        chosen = rule(among, mine, RULES, (rng.random(), rng.random())).consumer
        mine[chosen] += took_s
        start_s = max(now_s, free_at[chosen])
        found.append(start_s - now_s)
        free_at[chosen] = start_s + took_s
    return found


def p99(found):
    return heapq.nlargest(len(found) // 100, found)[-1]


def test_several_workers_that_see_one_report_queue_less_with_two_choices_than_with_the_best_of_all():
    assert p99(waits(choose, 16, 16)) < p99(waits(rank_by_load, 16, 16))
    assert p99(waits(choose, 16, 16)) < p99(waits(at_random, 16, 16)) / 2


@pytest.mark.parametrize(
    ("fields", "ready"), [({}, True), ({"intake": "closed by memory"}, False), ({"state": "draining"}, False)]
)
def test_an_owner_that_takes_nothing_in_is_not_ready(fields, ready):
    assert placement.owner(telemetry(**fields), [0], NOW_S).ready is ready
