"""Shares, waits, orders and evidence, on one real worker whose fleet is only its telemetry."""

import threading
import time
import uuid

import msgspec
import pytest

from autoscaler.settings import AutoscalerSettings
from rampmeter.hindsight import overrides, replay
from rampmeter.hindsight.redecide import Books
from tests.support.streams_worker import Site, StreamsWorker, chat, send, wait_until
from topics import codec, orders
from topics.outcomes import Outcome, Reason
from topics.records import (
    Control,
    ControlAction,
    ControlKind,
    Priority,
    Reply,
    Tokens,
    Usage,
)
from topics.telemetry import Telemetry

LANES = [f"lanes.default.{tier}.{length}" for tier in ("high", "medium", "low") for length in ("short", "long")]
RATE = 100.0
"""Units a second that the fleet says it can finish; the window below holds one second of them."""
UNITS = 27.0
"""About what `max_tokens=100` costs."""


@pytest.fixture(scope="module")
def site(broker, redis_server):
    bucket = {"refill_units_per_s": 1e6, "warm_up_s": 0}
    made = Site(
        broker, redis_server.url, 5, max_deferral_s=8, fair={"window_s": 1.0, "hold_s": 0.5}, tenant_budget=bucket,
        global_budget=bucket, pool_budget=bucket, class_budgets=dict.fromkeys(Priority, bucket), long_max_tokens=1000,
        long_cost_units=1000,
    )  # fmt: skip
    yield made
    made.close()


@pytest.fixture(scope="module")
def worker(site, tmp_path_factory):
    made = StreamsWorker(site.env, tmp_path_factory.mktemp("streams") / "streams.log").start()
    yield made
    assert made.stop() == 0


@pytest.fixture
def fleet(site, worker):
    """Says twice a second that there is one consumer, which runs nothing; until the end of the test."""
    over = threading.Event()

    def report():
        while not over.wait(0.5):
            seen = Telemetry(
                consumer="c", pool="default", state="ready", at_s=time.time(), capacity_units_per_s=RATE,
                capacity_units=0.0, lanes={site.settings.topic(lane): [0, 1] for lane in LANES},
            )  # fmt: skip
            send(site.settings, "telemetry", [(codec.encode(seen), b"c", [], 0)])

    thread = threading.Thread(target=report)
    thread.start()
    time.sleep(1.5)
    yield
    over.set()
    thread.join()


def of_tenant(messages, tenant):
    works = [codec.decode_work(message.value()) for message in messages]
    return [work for work in works if work.request.tenant == tenant]


def answers(messages, tenant):
    found = [codec.decode_answer(message.value()) for message in messages]
    return [reply for reply in found if isinstance(reply, Reply) and reply.tenant == tenant]


def new_tenant(word):
    return f"{word}-{uuid.uuid4().hex[:6]}"


def put(site, tenant, count=1, headers=(), topic="requests.medium.short", **fields):
    ids = [f"{tenant}-{n}" for n in range(count)]
    body = chat(**{"max_tokens": 100, **fields})
    records = [(body, tenant.encode(), [*headers, ("rampmeter_id", i.encode())], 0) for i in ids]
    send(site.settings, topic, records)
    return ids


def finish(site, works):
    """Settle what lies on the lanes, as its consumer would."""
    records = [
        (
            codec.encode(
                Usage(
                    id=work.request.id, tenant=work.request.tenant, pool="default", model=work.request.model,
                    priority=work.request.priority, length=work.price.length, outcome=Outcome.COMPLETED, attempt=1,
                    reserved_units=work.price.cost_units, tokens=Tokens(prompt=2, output=100), finished_s=time.time(),
                    consumer="c",
                )
            ),
            work.request.tenant.encode(), [], 0,
        )
        for work in works
    ]  # fmt: skip
    send(site.settings, "usage", records)


def order(site, action, kind, name, **fields):
    control = Control(
        id=f"o-{uuid.uuid4().hex[:8]}", action=action, kind=kind, name=name, at_s=time.time(), by="test", **fields
    )
    send(site.settings, "control", [(codec.encode(control), orders.key_of(control).encode(), [], 0)])
    return control.id


def decisions(site):
    log = site.log("decisions")
    return lambda: [codec.decode_decision(message.value()) for message in log.poll()]


def test_a_flood_gets_its_share_of_the_lanes_and_another_tenant_gets_in_at_once(site, fleet):
    lanes = site.log(*LANES)
    flood, calm = new_tenant("flood"), new_tenant("calm")
    ids = put(site, flood, 20)
    first = lanes.until(lambda found: len(of_tenant(found, flood)) >= 3 and of_tenant(found, flood))
    time.sleep(1.2)  # nothing ends, so nothing more may come
    first = of_tenant(lanes.poll(), flood)
    assert RATE / UNITS - 1 <= len(first) <= RATE / UNITS + 1
    put(site, calm)
    assert lanes.until(lambda found: of_tenant(found, calm), 3)
    assert len(of_tenant(lanes.messages, flood)) == len(first)
    done = []

    def drained():
        new = of_tenant(lanes.poll(), flood)[len(done) :]
        finish(site, new)
        done.extend(new)
        return len(done) == len(ids)

    finish(site, of_tenant(lanes.messages, calm))
    wait_until(drained, 40, lambda: f"{len(done)} of {len(ids)}")
    assert sorted(work.request.id for work in done) == sorted(ids)


def test_a_deadline_that_the_lane_cannot_meet_is_refused_at_once_with_place_and_estimate(site, fleet):
    lanes, replies = site.log(*LANES), site.log("replies")
    ahead, late = [new_tenant("ahead") for _ in range(3)], new_tenant("late")
    for tenant in ahead:  # who has nothing open gets one in
        put(site, tenant, max_tokens=900)
    waiting = lanes.until(lambda found: len(works := [w for t in ahead for w in of_tenant(found, t)]) == 3 and works)
    put(site, late, headers=[("rampmeter_deadline_s", b"%f" % (time.time() + 4))])
    reply = replies.until(lambda found: answers(found, late), 5)[0]
    assert (reply.outcome, reply.reason) == (Outcome.REJECTED_DEADLINE, Reason.DEADLINE_UNREACHABLE)
    assert reply.position == 3
    assert 5 < reply.wait_estimate_s < 10  # three of about 243 units at 100 a second
    assert reply.retry_after_s > 0
    finish(site, waiting)


def test_a_paused_tenant_waits_and_goes_on_when_it_is_resumed(site, worker):
    lanes, read = site.log(*LANES), decisions(site)
    tenant = new_tenant("paused")
    paused = order(site, ControlAction.PAUSE, ControlKind.TENANT, tenant)
    wait_until(lambda: [d for d in read() if d.id == paused], 30)
    put(site, tenant)
    wait_until(lambda: [d for d in read() if d.id == f"{tenant}-0" and d.reason == Reason.PAUSED], 30)
    assert not of_tenant(lanes.poll(), tenant)
    order(site, ControlAction.RESUME, ControlKind.TENANT, tenant)
    assert len(lanes.until(lambda found: of_tenant(found, tenant), 15)) == 1


def test_a_cancel_overtakes_a_request_that_waits_and_is_answered_once(site, worker):
    lanes, replies, read = site.log(*LANES), site.log("replies"), decisions(site)
    tenant = new_tenant("cancelled")
    order(site, ControlAction.PAUSE, ControlKind.TENANT, tenant)
    cancelled = order(site, ControlAction.CANCEL, ControlKind.REQUEST, f"{tenant}-0", tenant=tenant)
    wait_until(lambda: [d for d in read() if d.id == cancelled], 30)
    put(site, tenant)
    reply = replies.until(lambda found: answers(found, tenant), 10)
    assert [(r.outcome, r.reason) for r in reply] == [(Outcome.CANCELLED, Reason.CANCELLED)]
    assert not of_tenant(lanes.poll(), tenant)


def test_a_cancel_of_what_waits_in_a_delay_topic_is_answered_before_it_comes_back_and_once(site, worker):
    lanes, replies, read = site.log(*LANES), site.log("replies"), decisions(site)
    tenant = new_tenant("away")
    order(site, ControlAction.PAUSE, ControlKind.TENANT, tenant)
    time.sleep(1)
    put(site, tenant)
    deferred = wait_until(lambda: [d for d in read() if d.id == f"{tenant}-0" and d.reason == Reason.PAUSED], 30)[0]
    order(site, ControlAction.CANCEL, ControlKind.REQUEST, f"{tenant}-0", tenant=tenant)
    reply = replies.until(lambda found: answers(found, tenant), 10)[0]
    assert reply.outcome is Outcome.CANCELLED
    assert reply.timing.finished_s - deferred.at_s < deferred.inputs["delay_s"] - 1
    time.sleep(deferred.inputs["delay_s"] + 1 - (time.time() - deferred.at_s))
    put(site, new_tenant("after"))
    assert len(answers(replies.poll(), tenant)) == 1
    assert not of_tenant(lanes.poll(), tenant)


def test_a_live_limit_holds_at_once_and_is_taken_back(site, worker):
    lanes, replies, read = site.log(*LANES), site.log("replies"), decisions(site)
    tenant = new_tenant("limited")
    limited = order(
        site, ControlAction.LIMITS, ControlKind.TENANT, tenant, refill_units_per_s=0.001, burst_s=1000 * UNITS * 1000
    )
    wait_until(lambda: [d for d in read() if d.id == limited], 30)
    put(site, tenant)
    assert replies.until(lambda found: answers(found, tenant), 10)[0].reason is Reason.BUDGET_TENANT
    reset = order(site, ControlAction.LIMITS, ControlKind.TENANT, tenant)
    wait_until(lambda: [d for d in read() if d.id == reset], 30)
    put(site, f"{tenant}x")
    put(site, tenant, headers=[("rampmeter_priority", b"medium")], topic="requests.medium.long", text="again")
    site.send(chat(max_tokens=100), key=tenant.encode(), headers=[("rampmeter_id", f"{tenant}-after".encode())])
    assert lanes.until(lambda found: of_tenant(found, tenant), 10)


def of_every_kind(site, read):
    """Have something decided in every way; the ids of the requests."""
    crowd, paused, cancelled, limited, late = map(new_tenant, ("crowd", "paused", "cancelled", "limited", "late"))
    lanes = site.log(*LANES)
    orders_given = [
        order(site, ControlAction.PAUSE, ControlKind.TENANT, paused),
        order(site, ControlAction.CANCEL, ControlKind.REQUEST, f"{cancelled}-0", tenant=cancelled),
        order(site, ControlAction.LIMITS, ControlKind.TENANT, limited, refill_units_per_s=0.001, burst_s=1e8),
    ]
    ids = put(site, crowd, 20)
    finish(site, lanes.until(lambda found: of_tenant(found, crowd)))
    wait_until(lambda: {d.id for d in read() if d.stage == "control"} >= set(orders_given), 30)
    ids += [*put(site, paused), *put(site, cancelled), *put(site, limited)]
    ids += put(site, late, headers=[("rampmeter_deadline_s", b"%f" % (time.time() + 0.7))])
    site.send(b"not json")
    site.send(chat(model="unheard-of"))
    stages = {"admission", "verification", "settlement", "control"}
    wait_until(lambda: {d.stage for d in read()} >= stages and {d.id for d in read()} >= set(ids), 20)
    return ids


def test_every_kind_of_decision_is_made_again_and_a_tampered_one_or_another_limit_is_seen(site, fleet):
    read = decisions(site)
    ids = of_every_kind(site, read)
    books = Books(site.settings, AutoscalerSettings())
    found = replay.run(books, books, 0.0)
    assert found.differences == []
    assert (found.other_settings, found.other_versions, found.records_gone) == (0, {}, 0)
    assert found.recorded >= 3, "orders"
    assert found.by_stage.keys() >= {"admission", "verification", "settlement"}
    logged = [d for d in read() if d.stage == "admission"]
    assert {d.verdict for d in logged} == {"admit", "hold", "defer", "reject"}
    assert {Reason.BUDGET_TENANT, Reason.DEADLINE_UNREACHABLE, Reason.PAUSED, Reason.CANCELLED} <= {
        d.reason for d in logged
    }

    taken = next(d for d in logged if d.verdict == "hold" and "seen_s" in d.inputs)
    forged = msgspec.structs.replace(taken, inputs={**taken.inputs, "priority": "high", "budget_wait_s": 1e6})
    (origin,) = send(site.settings, "decisions", [(codec.encode(forged), taken.id.encode(), [], 0)])
    (changed,) = replay.run(books, books, 0.0).differences
    assert (changed.id, changed.topic, changed.partition, changed.offset) == (
        taken.id, origin.topic, origin.partition, origin.offset,
    )  # fmt: skip
    assert {each.field for each in changed.fields} >= {"verdict", "priority"}

    stricter = overrides.changed(
        site.settings, overrides.parsed(['streams.max_wait_s={"high": 0.1, "medium": 0.1, "low": 0.1}'])
    )
    had_been = replay.run(Books(stricter, books.autoscaler), books, 0.0)
    refused = [one for one in had_been.differences if any(each.again == Reason.LANE_WAIT for each in one.fields)]
    assert {one.id for one in refused} & set(ids)
