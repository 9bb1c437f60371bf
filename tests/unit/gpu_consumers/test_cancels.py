import pytest
from prometheus_client import CollectorRegistry

from gpu_consumers.assignment import Assignment, Entry, Fetched
from gpu_consumers.cancels import Cancels, Noted
from gpu_consumers.control import order_in
from gpu_consumers.metrics import Metrics
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.selection import Lane
from gpu_consumers.settings import Gpu, GpuSettings
from tests.support.builders import WALL_S, work
from tests.support.clock import FakeClock
from topics import codec, orders
from topics.records import Control, ControlAction, ControlKind, Length, Tier

KEEP_S = 600.0
SETTINGS = GpuSettings(gpu=Gpu(consumer_id="me"))


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


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def remembered(metrics, clock):
    return lambda bound=10: Cancels(bound, KEEP_S, clock, metrics)


def noted(*made, at_s=WALL_S):
    return [Noted(one, at_s) for one in made]


def test_an_order_is_remembered_for_work_that_comes_later(remembered):
    cancels = remembered()
    assert cancels.note(noted(order("a"), order("b", "acme"))) == {"a", "b"}
    waiting = entry("a")
    assert cancels.applies(waiting)
    assert waiting.order.id == "o-a"
    assert [cancels.applies(entry(i)) for i in ("a", "b", "c")] == [True, True, False]


def test_only_the_newest_are_remembered(remembered):
    cancels = remembered(3)
    cancels.note(noted(*(order(f"r{n}") for n in range(5))))
    assert [cancels.applies(entry(f"r{n}")) for n in range(5)] == [False, False, True, True, True]


def test_repeated_orders_are_one(remembered):
    cancels = remembered(3)
    for _ in range(10):
        cancels.note(noted(order("a")))
    cancels.note(noted(order("b"), order("c")))
    assert cancels.applies(entry("a"))


def test_an_id_that_is_used_again_after_the_window_is_not_cancelled_and_one_that_was_stays_so(remembered, clock):
    cancels, before = remembered(), entry("a")
    cancels.note(noted(order("a")))
    clock.advance(KEEP_S)
    assert cancels.applies(before)
    clock.advance(1)
    assert not cancels.applies(entry("a"))
    assert cancels.applies(before)


def test_old_orders_are_forgotten_though_no_work_asks_and_one_that_was_repeated_is_not_old(remembered, clock):
    cancels = remembered()
    cancels.note(noted(*(order(f"r{n}") for n in range(5))))
    clock.advance(KEEP_S - 1)
    cancels.note(noted(order("r0"), at_s=clock.wall_s()))
    clock.advance(2)
    cancels.note([])
    assert list(cancels._orders) == [("r0", None)]
    assert cancels.applies(entry("r0"))


def test_an_order_that_was_old_when_it_came_cancels_nothing_though_a_newer_one_lies_before_it(remembered, metrics):
    cancels = remembered()
    cancels.note([Noted(order("new"), WALL_S), Noted(order("old"), WALL_S - KEEP_S - 1)])
    assert [cancels.applies(entry(i)) for i in ("new", "old")] == [True, False]
    assert metrics.cancels.labels("foreign")._value.get() == 0


def test_an_order_of_another_tenant_cancels_nothing_and_hides_no_other(remembered, metrics):
    cancels = remembered()
    cancels.note(noted(order("a", "mallory"), order("b", "mallory"), order("b", "acme")))
    assert not cancels.applies(entry("a"))
    assert not cancels.applies(entry("a"))
    assert cancels.applies(entry("b"))
    assert metrics.cancels.labels("foreign")._value.get() == 1


class Message:
    """A record of the control topic."""

    def __init__(self, key, value):
        self.key, self.value = lambda: key, lambda: value


@pytest.mark.parametrize(
    ("fields", "key", "is_ours"),
    [
        ({}, None, True),
        ({}, "request:b", False),
        ({"name": "two words"}, None, False),
        ({"kind": ControlKind.TENANT}, None, False),
        ({"action": ControlAction.PAUSE}, None, False),
        ({"action": ControlAction.PAUSE, "kind": ControlKind.POOL, "name": "default"}, None, False),
    ],
)
def test_only_cancels_that_admission_follows_too_are_ours(fields, key, is_ours):
    made = order(**{"name": "a", **fields})
    message = Message((key or orders.key_of(made)).encode(), codec.encode(made))
    assert order_in(message, SETTINGS) == (made if is_ours else None)


@pytest.mark.parametrize("message", [Message(b"request:a", b"{"), Message(None, None), Message(b"\xff", b"{}")])
def test_what_no_one_can_read_orders_nothing(message):
    assert order_in(message, SETTINGS) is None
