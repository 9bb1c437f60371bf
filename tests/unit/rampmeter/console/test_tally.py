import pytest

from rampmeter.console import tally
from rampmeter.console.tally import OTHER, WINDOW_S, Tally, largest
from rampmeter.spending import Spend
from topics import codec
from topics.records import Decision

NOW_S = 1000.0


def decision(stage="admission", verdict="admit", at_s=NOW_S, shadow=None, **inputs):
    made = Decision(
        id="r1", stage=stage, verdict=verdict, reason="none", at_s=at_s, by="w", inputs=inputs, shadow=shadow
    )
    return codec.encode(made)


def told(*values, now_s=NOW_S, kept=10):
    made = Tally(kept)
    for value in values:
        made.take(value, now_s)
    return made.told(now_s)


FIRST = {"tenant": "acme", "cost_units": 30.0, "long_units": 100.0}
AGAIN = {"tenant": "acme", "cost_units": 30.0}


@pytest.mark.parametrize(
    ("value", "spend"),
    [
        (decision(**FIRST), Spend(asked_units=30.0, requests=1)),
        (decision(verdict="hold", **FIRST), Spend(asked_units=30.0, requests=1)),
        (decision(verdict="reject", **FIRST), Spend(asked_units=30.0, requests=1, rejected=1)),
        (decision(verdict="reject", **AGAIN), Spend(rejected=1)),
        (decision("verification", "reject", tenant="acme"), Spend(requests=1, rejected=1)),
        (decision("settlement", "settled", tenant="acme", real_units=12.0), Spend(used_units=12.0)),
    ],
)
def test_each_entry_counts_once(value, spend):
    assert told(value).tenants == {"acme": spend}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b'{"stage": 7}',
        decision(**AGAIN),
        decision(shadow="small", **FIRST),
        decision("settlement", "repeat", tenant="acme", real_units=12.0),
        decision(at_s=NOW_S - WINDOW_S - 1, **FIRST),
        decision("control", "pause", name="acme"),
    ],
)
def test_what_charges_nobody_now_counts_for_nobody(value):
    assert told(value).tenants == {}


def test_the_window_moves_on():
    made = Tally(10)
    made.take(decision(**FIRST), NOW_S)
    assert made.told(NOW_S + WINDOW_S / 2).tenants["acme"].requests == 1
    assert made.told(NOW_S + WINDOW_S + 5).tenants == {}


def test_more_tenants_than_are_told_apart_are_the_others(monkeypatch):
    monkeypatch.setattr(tally, "MAX_TENANTS", 2)
    named = [decision(**{**FIRST, "tenant": f"t{n}"}) for n in range(5)]
    tenants = told(*named).tenants
    assert set(tenants) == {"t0", "t1", OTHER}
    assert tenants[OTHER].requests == 3
    assert set(largest(tenants, 9)) == {"t0", "t1"}


def test_the_largest_are_those_that_ask_for_or_use_most():
    spends = {"a": Spend(asked_units=1), "b": Spend(used_units=5), "c": Spend(asked_units=3), "d": Spend()}
    assert largest(spends, 2) == ["b", "c"]


def scaled(at_s, reason="scale_up", **inputs):
    made = Decision(
        id="default", stage="scale", verdict="up", reason=reason, at_s=at_s, by="autoscaler",
        inputs={"replicas_before": 1, "replicas": 3, "lag_records": 40, **inputs},
    )  # fmt: skip
    return codec.encode(made)


def test_the_autoscalers_newest_come_first_with_what_their_reason_means():
    newest, *rest = told(*(scaled(NOW_S + n) for n in range(5)), kept=3).scaling
    assert (newest.at_s, len(rest)) == (NOW_S + 4, 2)
    assert (newest.before, newest.after, newest.inputs["lag_records"]) == (1, 3, 40)
    assert "more are needed" in newest.words


def test_a_reason_of_another_version_is_shown_all_the_same():
    (one,) = told(scaled(NOW_S, "by_the_moon")).scaling
    assert (one.reason, one.words) == ("by_the_moon", "a reason of another version")
