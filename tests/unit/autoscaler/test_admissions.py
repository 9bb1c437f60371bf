"""What waits before the lanes, as the decision log tells it."""

import pytest

from autoscaler import admissions
from autoscaler.admissions import FORGET_S, Before, Waiting
from topics import codec
from topics.records import Decision, Length, Tier


def told(identity, verdict, reason="fair_share", cost_units=10.0, priority="medium", **more):
    inputs = {"pool": "default", "priority": priority, "cost_units": cost_units, "wait_s": 3.0, "tenant": "t"}
    decision = {"stage": "admission", "at_s": 1.0, "by": "w1", **more}
    return codec.encode(Decision(id=identity, verdict=verdict, reason=reason, inputs=inputs, **decision))


def after(*records, now_s=100.0):
    waiting = Waiting()
    for record in records:
        waiting.take(record, 0.0)
    return waiting.summed_up(now_s).get("default", Before())


@pytest.mark.parametrize("verdict", ["hold", "defer"])
def test_what_waits_for_room_counts_by_tier_until_it_is_decided(verdict):
    records = [told("a", verdict, priority="high"), told("b", verdict, cost_units=5.0), told("b", verdict)]
    assert after(*records) == Before((10.0, 10.0, 0.0, 0.0))
    assert after(*records, told("a", "admit", "none")) == Before((0.0, 10.0, 0.0, 0.0))
    assert after(*records, told("b", "reject", "cancelled")) == Before((10.0, 0.0, 0.0, 0.0))


def test_how_many_wait_for_room_is_known_by_class():
    records = [waits("a", "high", "short"), waits("b", "low", "long"), waits("c", "low", "long")]
    assert after(*records).held_requests == {("high", "short"): 1, ("low", "long"): 2}
    assert after(*records, waits("b", "low", "long", verdict="admit")).held_requests[Tier.LOW, Length.LONG] == 1
    assert after(waits("a", "high", "odd"), waits("b", "odd", "short")).held_requests == {}


def waits(identity, priority, length, verdict="defer"):
    inputs = {"pool": "default", "priority": priority, "length": length, "cost_units": 1.0}
    decision = {"stage": "admission", "reason": "fair_share", "at_s": 1.0, "by": "w1"}
    return codec.encode(Decision(id=identity, verdict=verdict, inputs=inputs, **decision))


@pytest.mark.parametrize("reason", ["budget_tenant", "budget_pool", "paused"])
def test_what_waits_for_something_else_is_no_demand_for_engines(reason):
    assert after(told("a", "hold"), told("a", "defer", reason), told("b", "hold", reason)) == Before()


def test_what_was_refused_for_want_of_room_is_summed_up():
    refused = [told(name, "reject", "lane_wait") for name in "abc"]
    assert after(*refused, told("d", "reject", "budget_tenant")) == Before(refused_units=30.0)


@pytest.mark.parametrize(
    "record", [told("a", "hold", shadow="small"), told("a", "hold", stage="scale"), b"\xff", b"{}", b""]
)
def test_shadows_other_stages_and_foreign_records_say_nothing(record):
    assert after(record) == Before()


def test_who_was_not_heard_of_for_long_is_forgotten():
    assert after(told("a", "hold"), now_s=FORGET_S) == Before((0.0, 10.0, 0.0, 0.0))
    assert after(told("a", "hold"), now_s=FORGET_S + 1) == Before()


def test_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(admissions, "MAX_WAITING", 3)
    assert after(*[told(f"r{n}", "hold") for n in range(9)]) == Before((0.0, 30.0, 0.0, 0.0))
