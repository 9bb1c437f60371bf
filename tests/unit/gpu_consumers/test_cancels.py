import pytest
from prometheus_client import CollectorRegistry

from gpu_consumers.assignment import Assignment, Entry, Fetched
from gpu_consumers.cancels import Cancels, is_cancel
from gpu_consumers.metrics import Metrics
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.selection import Lane
from tests.support.builders import WALL_S, work
from topics.records import Control, ControlAction, ControlKind, Length, Tier


def order(name, tenant=None, **fields):
    made = {"id": f"o-{name}", "action": ControlAction.CANCEL, "kind": ControlKind.REQUEST, "at_s": WALL_S, "by": "me"}
    return Control(name=name, tenant=tenant, **{**made, **fields})


def entry(request_id, tenant="acme"):
    where = Assignment("lane", 0, Lane(Tier.MEDIUM, Length.SHORT), OffsetTracker(None, [], window_records=9))
    made = work({"id": request_id, "tenant": tenant})
    return Entry(Fetched(where, 0, b"", b"", WALL_S), made, Ask(1, 1, 1.0))


@pytest.fixture
def metrics():
    return Metrics(CollectorRegistry())


def test_an_order_is_remembered_for_work_that_comes_later(metrics):
    cancels = Cancels(10, metrics)
    assert cancels.note([order("a"), order("b", "acme")]) == {"a", "b"}
    waiting = entry("a")
    assert cancels.applies(waiting)
    assert waiting.order.id == "o-a"
    assert [cancels.applies(entry(i)) for i in ("a", "b", "c")] == [True, True, False]


def test_only_the_newest_are_remembered(metrics):
    cancels = Cancels(3, metrics)
    cancels.note([order(f"r{n}") for n in range(5)])
    assert [cancels.applies(entry(f"r{n}")) for n in range(5)] == [False, False, True, True, True]


def test_repeated_orders_are_one(metrics):
    cancels = Cancels(3, metrics)
    for _ in range(10):
        cancels.note([order("a")])
    cancels.note([order("b"), order("c")])
    assert cancels.applies(entry("a"))


def test_an_order_of_another_tenant_cancels_nothing_and_hides_no_other(metrics):
    cancels = Cancels(10, metrics)
    cancels.note([order("a", "mallory"), order("b", "mallory"), order("b", "acme")])
    assert not cancels.applies(entry("a"))
    assert not cancels.applies(entry("a"))
    assert cancels.applies(entry("b"))
    assert metrics.cancels.labels("foreign")._value.get() == 1


@pytest.mark.parametrize(
    ("fields", "is_ours"),
    [
        ({}, True),
        ({"kind": ControlKind.TENANT}, False),
        ({"action": ControlAction.PAUSE}, False),
        ({"action": ControlAction.PAUSE, "kind": ControlKind.POOL}, False),
    ],
)
def test_orders_for_admission_are_not_ours(fields, is_ours):
    assert is_cancel(order("a", **fields)) == is_ours
