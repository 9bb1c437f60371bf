"""Orders on a real control topic: followed, applied once, recorded once, forgotten."""

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from rampmeter import control as orders
from rampmeter.control import Change
from streams.control import Controls
from streams.order_log import OrderLog
from streams.settings import Bucket, StreamsSettings
from tests.support.clock import FakeClock
from tests.support.command import one_line_of_json, run
from tests.support.streams_worker import TopicLog, send, wait_until
from topics import catalog, clients, codec
from topics.errors import DependencyDown
from topics.orders import key_of
from topics.records import Control, ControlAction, ControlKind, Priority
from topics.settings import load

CANCEL, PAUSE, RESUME, LIMITS, DRAIN = ControlAction
REQUEST, TENANT, POOL, CLASS, GLOBAL, CONSUMER = ControlKind
ACME = ("acme", "default", Priority.HIGH)


@pytest.fixture
def loaded(settings):
    return load(StreamsSettings)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def make_worker(loaded, clock):
    """Controls that are current; `leads` can be changed."""
    made = []

    def make(leads=True):
        limits = {}
        leader = [leads]
        order_log = OrderLog(loaded, clock, lambda: leader[0])
        controls = Controls(loaded, clock, order_log, lambda *args: limits.update({args[:2]: args[2]}))
        controls.order_log, controls.limits, controls.leader = order_log, limits, leader
        made.append(controls)
        controls.start()
        controls.await_current()
        return controls

    yield make
    for controls in made:
        controls.stop()


@pytest.fixture
def give(loaded, clock):
    def give(action, kind, name, **fields):
        order = orders.make_order(loaded, clock, action, (kind, name), Change(**fields))
        orders.send_order(loaded, order)
        return order

    return give


def put(loaded, value, key):
    send(loaded, "control", [(value, key, [], 0)])


def taken(controls, count):
    """Orders as the worker's loop takes them for the decision log, until there are so many."""
    found = []

    def enough():
        found.extend(controls.order_log.take_orders())
        return len(found) >= count

    wait_until(enough, 20, lambda: str(found))
    return found


def test_orders_given_before_the_start_hold_at_once(make_worker, give):
    give(CANCEL, REQUEST, "r1", tenant="acme")
    give(PAUSE, TENANT, "acme")
    give(PAUSE, CLASS, "low")
    give(RESUME, CLASS, "low")
    worker = make_worker()
    assert worker.is_cancelled("r1", "acme")
    assert not worker.is_cancelled("r1", "other")
    assert worker.paused_reason(*ACME) == "the tenant acme is paused"
    assert not worker.paused_reason("other", "default", Priority.LOW)


def test_orders_given_later_hold_soon_and_can_be_taken_back(make_worker, give):
    worker = make_worker()
    assert not worker.paused_reason(*ACME)
    give(PAUSE, POOL, "default")
    wait_until(lambda: worker.paused_reason(*ACME), 30)
    give(RESUME, POOL, "default")
    wait_until(lambda: not worker.paused_reason(*ACME), 30)
    give(CANCEL, REQUEST, "r1")
    wait_until(lambda: worker.is_cancelled("r1", "anyone"), 30)


def test_limits_lie_over_those_of_the_settings_until_they_are_reset(make_worker, give, loaded):
    worker = make_worker()
    give(LIMITS, TENANT, "acme", refill_units_per_s=7.0)
    wait_until(lambda: worker.limits, 30)
    assert worker.limits == {
        ("tenant", "acme"): loaded.streams.tenant_budget.model_copy(update={"refill_units_per_s": 7.0})
    }
    give(LIMITS, CLASS, "low", refill_units_per_s=3.0, burst_s=2.0)
    give(LIMITS, GLOBAL, "all", burst_s=5.0)
    give(LIMITS, TENANT, "acme")
    wait_until(lambda: worker.limits[("tenant", "acme")] is None, 30)
    assert worker.limits[("class", "low")] == Bucket(refill_units_per_s=3.0, burst_s=2.0)
    assert worker.limits[("global", "all")].burst_s == 5.0


def test_a_pause_does_not_end_the_limits_of_the_same_tenant_after_compaction(make_worker, give, loaded):
    give(LIMITS, TENANT, "acme", burst_s=2.0)
    give(PAUSE, TENANT, "acme")
    keys = [message.key() for message in TopicLog(loaded, "control").until(lambda found: len(found) == 2 and found)]
    assert len(set(keys)) == 2, "compaction would keep one of them"


def test_a_cancellation_is_forgotten_after_the_window_and_its_key_is_given_to_compaction(
    make_worker, give, clock, loaded
):
    worker, other = make_worker(), make_worker(leads=False)
    give(CANCEL, REQUEST, "r1")
    wait_until(lambda: worker.is_cancelled("r1", "acme"), 30)
    worker.order_log.take_orders()
    assert worker.order_log.take_tombstones() == []
    clock.advance(loaded.dedupe_window_s + 1)
    assert not worker.is_cancelled("r1", "acme")
    found = []
    wait_until(lambda: found.extend(worker.order_log.take_tombstones()) or found, 30)
    assert found == [b"request:r1"]
    assert other.order_log.take_tombstones() == []
    put(loaded, None, found[0])
    third = make_worker()
    third.order_log.take_orders()
    assert third.order_log._cancelled_s == {}, "a tombstone is not needed twice"


def test_what_makes_no_sense_is_ignored_and_what_follows_holds(make_worker, give, loaded, clock):
    order = Control(id="x", action=PAUSE, kind=POOL, name="elsewhere", at_s=clock.wall_s(), by="me")
    put(loaded, b"\xff", b"paused:tenant:acme")
    put(loaded, b'{"action":"pause"}', b"paused:tenant:acme")
    put(loaded, b'{"x":' + b"[" * 100_000, b"paused:tenant:acme")
    put(loaded, codec.encode(order), key_of(order).encode())
    put(loaded, codec.encode(order), b"\xff")
    give(PAUSE, TENANT, "acme")
    worker = make_worker()
    assert worker.paused_reason(*ACME)
    assert [taken_order.kind for taken_order in taken(worker, 1)] == [TENANT]


def test_each_order_is_recorded_once_and_by_the_leader(make_worker, give):
    worker, other = make_worker(), make_worker(leads=False)
    order = give(LIMITS, TENANT, "acme", refill_units_per_s=7.0)
    assert taken(worker, 1) == [order]
    wait_until(lambda: other.limits, 30)
    assert other.order_log.take_orders() == worker.order_log.take_orders() == []


def committed(loaded):
    reader = clients.consumer(loaded, catalog.group(loaded, "control"))
    try:
        return reader.committed([TopicPartition(loaded.topic("control"), 0)], timeout=10)[0].offset
    finally:
        reader.close()


def test_a_restart_records_nothing_again_and_what_came_meanwhile_once(make_worker, give, loaded):
    first = make_worker()
    give(PAUSE, TENANT, "acme")
    assert len(taken(first, 1)) == 1
    assert first.order_log.take_orders() == []
    wait_until(lambda: committed(loaded) == 1, 30)
    first.stop()
    late = give(PAUSE, TENANT, "other")
    second = make_worker()
    assert taken(second, 1) == [late]


def test_what_a_leader_took_and_never_sent_is_recorded_by_the_next(make_worker, give, loaded):
    first, second = make_worker(), make_worker(leads=False)
    order = give(PAUSE, TENANT, "acme")
    assert len(taken(first, 1)) == 1
    assert committed(loaded) == OFFSET_INVALID, "committed before it was sent"
    first.stop()
    second.leader[0] = True
    assert taken(second, 1) == [order]


def test_the_same_record_twice_is_recorded_once(make_worker, give, loaded):
    order = give(PAUSE, TENANT, "acme")
    put(loaded, codec.encode(order), key_of(order).encode())
    give(RESUME, TENANT, "acme")
    assert [taken_order.action for taken_order in taken(make_worker(), 2)] == [PAUSE, RESUME]


def test_a_sender_whose_clock_is_wrong_cancels_all_the_same(make_worker, loaded, clock):
    worker = make_worker()
    for number, at_s in enumerate((clock.wall_s() - 1e6, clock.wall_s() + 1e6)):
        order = Control(id=f"o{number}", action=CANCEL, kind=REQUEST, name=f"r{number}", at_s=at_s, by="me")
        put(loaded, codec.encode(order), key_of(order).encode())
    wait_until(lambda: all(worker.is_cancelled(f"r{number}", "acme") for number in (0, 1)), 30)
    clock.advance(loaded.dedupe_window_s + 1)
    assert not any(worker.is_cancelled(f"r{number}", "acme") for number in (0, 1))


def test_a_worker_that_starts_later_does_not_go_by_the_senders_clock_either(make_worker, loaded, clock):
    order = Control(id="o", action=CANCEL, kind=REQUEST, name="r", at_s=clock.wall_s() - 1e6, by="me")
    put(loaded, codec.encode(order), key_of(order).encode())
    assert make_worker().is_cancelled("r", "acme")


def test_a_worker_that_cannot_read_the_orders_says_so(loaded, clock):
    controls = Controls(loaded, clock, OrderLog(loaded, clock, lambda: True), lambda *_: None)
    with pytest.raises(DependencyDown, match=r"the orders were not read within 0\.1 s"):
        controls.await_current(0.1)


def test_the_commands_order_what_a_worker_follows(make_worker, stack_env, tmp_path):
    worker = make_worker()

    def rampmeter(*args):
        done = run(*args, cwd=tmp_path, env=stack_env)
        assert done.returncode == 0, done.stderr
        return done

    order = one_line_of_json(rampmeter("cancel", "r1", "--tenant", "acme", "--json"))
    wait_until(lambda: worker.is_cancelled("r1", "acme"), 30)
    assert [taken_order.id for taken_order in taken(worker, 1)] == [order["id"]]
    rampmeter("pause", "tenant", "acme")
    wait_until(lambda: worker.paused_reason(*ACME), 30)
    rampmeter("limits", "set", "global", "--refill-units-per-s", "123", "--burst-s", "4")
    wait_until(lambda: worker.limits.get(("global", "all")) == Bucket(refill_units_per_s=123, burst_s=4), 30)
    rows = {
        (row["level"], row["name"]): row for row in one_line_of_json(rampmeter("limits", "show", "--json"))["limits"]
    }
    assert rows["global", "all"]["cap_units"] == 492
    assert rows["tenant", "acme"]["pause"]["by"] == rows["global", "all"]["order"]["by"] == order["by"]
    assert f"paused by {order['by']}" in rampmeter("limits", "show").stdout
    rampmeter("resume", "tenant", "acme")
    rampmeter("limits", "reset", "global")
    wait_until(lambda: not worker.paused_reason(*ACME) and worker.limits["global", "all"] is None, 30)
