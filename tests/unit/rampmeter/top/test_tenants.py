"""What the decision log says of tenants."""

import pytest

from rampmeter.top import tenants
from rampmeter.top.tenants import MAX_WAITING, OTHERS, WINDOW_S, Activity
from topics import codec
from topics.records import Decision

NOW_S = 1000.0


def decided(tenant="acme", *, at_s=NOW_S, stage="admission", verdict="admit", request_id="r1", shadow=None, **inputs):
    return codec.encode(
        Decision(
            id=request_id, stage=stage, verdict=verdict, reason="none", at_s=at_s, by="w",
            inputs={"tenant": tenant, **inputs}, shadow=shadow,
        )
    )  # fmt: skip


def first(tenant="acme", **fields):
    return decided(tenant, **{"long_units": 300.0, "cost_units": 60.0, **fields})


def settled(tenant="acme", verdict="settled", real_units=90.0):
    return decided(tenant, stage="settlement", verdict=verdict, real_units=real_units)


def seen(*records, most=10, now_s=NOW_S):
    activity = Activity()
    for record in records:
        activity.take(record, now_s)
    return activity.tenants(now_s, most)


def test_each_request_is_counted_once_and_the_charge_is_what_was_used():
    again = decided(verdict="admit", deferrals=1)
    (acme,) = seen(first(verdict="hold"), again, settled(), settled(verdict="repeat"))
    assert acme.requests_per_s == pytest.approx(1 / WINDOW_S, abs=0.001)
    assert acme.asked_units_per_s == pytest.approx(60 / WINDOW_S)
    assert acme.used_units_per_s == pytest.approx(90 / WINDOW_S)
    assert (acme.asked_ratio, acme.refused_ratio, acme.waiting) == (1.0, 0.0, 0)


def test_who_is_refused_or_waits_is_counted():
    records = [first(request_id=f"r{n}", verdict=word) for n, word in enumerate(["hold", "defer", "reject", "admit"])]
    unverified = decided(stage="verification", verdict="reject", request_id="bad")
    (acme,) = seen(*records, unverified)
    assert (acme.refused_ratio, acme.waiting) == (0.4, 2)


def test_what_is_older_than_the_window_is_forgotten_and_a_clock_that_is_ahead_counts_as_now():
    activity = Activity()
    activity.take(first(at_s=NOW_S - WINDOW_S - 1), NOW_S)
    assert activity.tenants(NOW_S, 10) == ()
    activity.take(first(at_s=NOW_S + 9000), NOW_S)
    assert [one.tenant for one in activity.tenants(NOW_S + WINDOW_S, 10)] == ["acme"]
    assert activity.tenants(NOW_S + WINDOW_S + 1, 10) == ()


def test_the_largest_are_named_and_the_others_are_one_so_that_the_sum_stays():
    found = seen(*(first(f"t{n}", cost_units=float(n)) for n in range(1, 6)), first(OTHERS, cost_units=5.0), most=2)
    assert [one.tenant for one in found] == ["t5", "t4", OTHERS]
    assert sum(one.asked_units_per_s for one in found) * WINDOW_S == pytest.approx(20.0, abs=0.1)
    assert sum(one.asked_ratio for one in found) == pytest.approx(1.0)


def test_tenants_beyond_the_bound_are_the_others(monkeypatch):
    monkeypatch.setattr(tenants, "MAX_TENANTS", 2)
    found = seen(*(first(f"t{n}") for n in range(5)))
    assert {one.tenant for one in found} == {"t0", "t1", OTHERS}


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"[]", decided(None, long_units=3.0), first(shadow="small"), decided(stage="control", verdict="pause")],
)
def test_what_is_no_decision_about_a_request_says_nothing(value):
    assert seen(value) == ()


def test_who_waits_and_is_never_heard_of_again_is_forgotten():
    activity = Activity()
    activity.take(first(verdict="defer"), NOW_S)
    assert activity.tenants(NOW_S + 600, 10)[0].waiting == 1
    assert activity.tenants(NOW_S + tenants.FORGET_S + 1, 10) == ()
    assert MAX_WAITING > 0
