"""The order in which what waits in memory is asked about again."""

from streams.holding import Holding, Pending
from streams.intake import Candidate
from tests.support.builders import WALL_S, work


def pending(identity, arrived_s=0.0, due_s=0.0, attained_units=0.0):
    candidate = Candidate(work({"id": identity, "arrived_s": WALL_S + arrived_s}))
    return Pending(candidate, due_s=due_s, attained_units=attained_units)


def ids(pendings):
    return [p.candidate.id for p in pendings]


def holding(**tenants):
    made = Holding(limit=100)
    for tenant, waiting in tenants.items():
        for one in waiting:
            made.add(("default", "medium.short", tenant), one)
    return made


def test_tenants_take_turns_and_the_one_that_was_served_least_comes_first():
    made = holding(
        flood=[pending(f"f{n}", n, attained_units=9.0) for n in range(4)],
        calm=[pending("c0", 7, attained_units=1.0), pending("c1", 8, attained_units=1.0)],
    )
    assert ids(made.take_due(0.0, 5)) == ["c0", "f0", "c1", "f1", "f2"]
    assert (made.count, ids(made.take_due(0.0, 5))) == (1, ["f3"])
    assert (made.count, made.groups) == (0, {})


def test_within_a_tenant_the_order_is_that_of_arrival_also_for_one_that_comes_back():
    made = holding(a=[pending("second", 2), pending("third", 3), pending("first", 1)])
    assert ids(made.take_due(0.0, 9)) == ["first", "second", "third"]


def test_a_group_is_not_due_before_its_first():
    made = holding(a=[pending("a0", due_s=5.0), pending("a1", due_s=1.0)], b=[pending("b0", due_s=2.0)])
    assert ids(made.take_due(2.0, 9)) == ["b0"]
    assert ids(made.take_due(5.0, 9)) == ["a0", "a1"]


def test_what_is_wanted_for_another_reason_is_taken_out_of_turn():
    made = holding(a=[pending("a0"), pending("a1")], b=[pending("b0")])
    assert sorted(ids(made.take_all(lambda p: p.candidate.id in {"a1", "b0"}))) == ["a1", "b0"]
    assert (made.count, made.units) == (1, 100.0)
    assert ids(made.take_due(0.0, 9)) == ["a0"]


def test_it_is_full_at_its_limit_and_for_one_tenant_at_a_tenth_of_it():
    made = Holding(limit=20)
    flood, calm = ("p", "l", "flood"), ("p", "l", "calm")
    for number in range(2):
        assert not made.is_full(flood)
        made.add(flood, pending(f"f{number}"))
    assert (made.is_full(flood), made.is_full(calm)) == (True, False)
    for number in range(18):
        made.add(("p", "l", f"t{number}"), pending(f"t{number}"))
    assert made.is_full(calm)


def test_only_who_waited_is_back():
    assert not pending("a").is_back
    assert Pending(Candidate(work(deferrals=1))).is_back
    assert Pending(Candidate(work()), held_since_s=1.0).is_back
