"""Cancels that meet a running consumer, through the control topic."""

import time

import pytest

from tests.support.gpu import wait_until
from topics import clients, keys
from topics.outcomes import Outcome, Reason
from topics.records import Length, Tier


def inflight(consumer, count):
    wait_until(lambda: consumer.metric("inflight_requests") == count, f"{count} run", consumer)


def committed(rig, count, consumer):
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == count, f"{count} committed", consumer)


def usage_of(rig, request_id, consumer):
    wait_until(lambda: any(usage.id == request_id for usage in rig.usages()), "its usage", consumer)
    (usage,) = [usage for usage in rig.usages() if usage.id == request_id]
    return usage


def decision_of(rig, request_id, consumer):
    wait_until(lambda: any(d.id == request_id for d in rig.decisions()), "its decision", consumer)
    (decision,) = [decision for decision in rig.decisions() if decision.id == request_id]
    return decision


@pytest.mark.parametrize("stream", [False, True])
def test_a_running_request_is_aborted_and_pays_for_what_it_used(rig, stream):
    consumer = rig.start(engine="simulated", window_requests=2, consumer_id="one").wait_ready()
    rig.put(rig.work("long", output_tokens=3000, stream=stream))
    inflight(consumer, 1)
    wait_until(lambda: rig.answers() or not stream, "its first chunk", consumer)
    rig.cancel("long")
    reply = rig.wait_replies(1)["long"]
    assert (reply.outcome, reply.reason) == (Outcome.CANCELLED, Reason.CANCELLED)
    assert stream <= reply.tokens.output < 3000
    assert reply.cost_units == pytest.approx(0.067 * reply.tokens.prompt + 0.27 * reply.tokens.output)
    usage = usage_of(rig, "long", consumer)
    assert (usage.outcome, usage.tokens, usage.partial) == (Outcome.CANCELLED, reply.tokens, False)
    assert 0 < usage.service_s < 30
    decision = decision_of(rig, "long", consumer)
    assert (decision.stage, decision.verdict, decision.by) == ("control", "cancel", "one")
    assert decision.inputs == {"attempt": 1, "where": "running", "tenant": "acme", "order": "o-long"}
    inflight(consumer, 0)
    committed(rig, 1, consumer)
    assert consumer.metric("cancels_total", where="running") == 1
    rig.put(rig.work("next", output_tokens=3))
    assert rig.wait_replies(2)["next"].outcome is Outcome.COMPLETED


def test_a_request_that_generated_a_while_pays_for_its_tokens_although_it_does_not_stream(rig):
    consumer = rig.start(engine="simulated", speed=4).wait_ready()
    rig.put(rig.work("long", output_tokens=20_000), rig.work("short", output_tokens=100))
    rig.wait_replies(1)
    rig.cancel("long")
    reply = rig.wait_replies(2)["long"]
    assert (reply.outcome, reply.tokens.prompt) == (Outcome.CANCELLED, 100)
    assert 90 < reply.tokens.output < 20_000
    assert usage_of(rig, "long", consumer).tokens == reply.tokens


def test_a_buffered_request_is_cancelled_while_every_slot_is_busy_and_costs_nothing(rig):
    consumer = rig.start(engine="simulated", window_requests=1).wait_ready()
    rig.put(rig.work("busy", output_tokens=400))
    inflight(consumer, 1)
    rig.put(rig.work("queued"), rig.work("other", tenant="other"))
    rig.cancel("queued", tenant="acme")
    rig.cancel("other", tenant="acme")
    reply = rig.wait_replies(1)["queued"]
    assert (reply.outcome, reply.cost_units, reply.timing.started_s) == (Outcome.CANCELLED, 0.0, None)
    usage = usage_of(rig, "queued", consumer)
    assert (usage.tokens.prompt, usage.tokens.output, usage.service_s, usage.reserved_units) == (0, 0, None, 100.0)
    assert decision_of(rig, "queued", consumer).inputs["where"] == "buffered"
    replies = rig.wait_replies(3)
    assert (replies["busy"].outcome, replies["other"].outcome) == (Outcome.COMPLETED, Outcome.COMPLETED)
    assert consumer.metric("cancels_total", where="foreign") == 1
    committed(rig, 3, consumer)


def test_the_last_of_a_long_queue_is_cancelled_or_expires_in_time_while_every_slot_is_busy(rig):
    consumer = rig.start(engine="simulated", window_requests=1).wait_ready()
    rig.put(rig.work("busy", output_tokens=100_000))
    inflight(consumer, 1)
    rig.put(*(rig.work(f"r{n}") for n in range(3000)), partition=0)
    wait_until(lambda: consumer.metric("queued_requests") == 3000, "all are fetched", consumer)
    deadline_s = time.time() + 2
    rig.put(rig.work("cancelled"), rig.work("expired", deadline_s=deadline_s), partition=0)
    asked_s = time.time()
    rig.cancel("cancelled")
    replies = rig.wait_replies(2)
    assert (replies["cancelled"].outcome, replies["expired"].outcome) == (Outcome.CANCELLED, Outcome.EXPIRED)
    assert replies["cancelled"].timing.finished_s < asked_s + 1
    assert deadline_s <= replies["expired"].timing.finished_s < deadline_s + 0.5
    assert consumer.metric("paused_partitions") == 0


def test_a_cancel_overtakes_its_request_and_survives_a_restart_of_the_consumer(rig):
    rig.put_control(b"not json", "request:x")
    rig.put_control(None, "request:y")
    rig.cancel("r1")
    time.sleep(0.01)
    consumer = rig.start(engine="simulated").wait_ready()
    wait_until(lambda: "started" in consumer.log(), "it runs", consumer)
    rig.put(rig.work("r1", output_tokens=3000), rig.work("r2", output_tokens=3))
    replies = rig.wait_replies(2)
    assert (replies["r1"].outcome, replies["r2"].outcome) == (Outcome.CANCELLED, Outcome.COMPLETED)


def test_an_order_older_than_ids_are_remembered_is_not_read_again(rig):
    rig.cancel("r1", at_s=time.time() - rig.settings.dedupe_window_s - 60)
    rig.start(engine="simulated").wait_ready()
    rig.cancel("r2")
    rig.put(rig.work("r1", output_tokens=3), rig.work("r2", output_tokens=3000))
    replies = rig.wait_replies(2)
    assert (replies["r1"].outcome, replies["r2"].outcome) == (Outcome.COMPLETED, Outcome.CANCELLED)


def test_a_cancel_after_the_end_changes_nothing(rig):
    consumer = rig.start(engine="simulated").wait_ready()
    rig.put(rig.work("done", output_tokens=3))
    rig.wait_replies(1)
    committed(rig, 1, consumer)
    rig.cancel("done")
    rig.cancel("later")
    rig.put(rig.work("done"), rig.work("later", output_tokens=3000))
    wait_until(lambda: len(rig.replies()) == 2, "the sentinel is answered", consumer)
    committed(rig, 3, consumer)
    replies = rig.by_id()
    assert (replies["done"].outcome, replies["later"].outcome) == (Outcome.COMPLETED, Outcome.CANCELLED)
    assert [decision.id for decision in rig.decisions()] == ["later"]


def test_a_request_and_its_aged_copy_are_cancelled_as_one(rig):
    consumer = rig.start(engine="simulated", window_requests=1).wait_ready()
    rig.put(rig.work("busy", output_tokens=300))
    inflight(consumer, 1)
    rig.put(rig.work("r1"))
    rig.put(rig.work("r1"), lane=rig.lane(Tier.AGED, Length.SHORT))
    wait_until(lambda: consumer.metric("queued_requests") == 2, "both wait", consumer)
    rig.cancel("r1")
    assert rig.wait_replies(2)["r1"].outcome is Outcome.CANCELLED
    wait_until(lambda: rig.committed(rig.lane(Tier.AGED)), "the copy is committed", consumer)
    assert len(rig.by_id()) == 2
    assert decision_of(rig, "r1", consumer).inputs["where"] == "buffered"


def test_a_request_that_a_dead_consumer_held_is_cancelled_when_its_lease_ends(rig):
    consumer = rig.start(engine="simulated").wait_ready()
    with clients.redis_sync(rig.settings) as redis:
        now_ms = int(time.time() * 1000)
        held = {"state": "running", "owner": "dead", "attempt": 1, "since_ms": now_ms, "lease_until_ms": now_ms + 8000}
        redis.hset(keys.of(rig.settings).claim("r1"), mapping=held)
    rig.put(rig.work("r1", output_tokens=3000))
    wait_until(lambda: consumer.metric("held_requests") == 1, "it is held", consumer)
    rig.cancel("r1")
    assert rig.wait_replies(1)["r1"].outcome is Outcome.CANCELLED
    assert consumer.metric("cancels_total", where="buffered") == 1
    committed(rig, 1, consumer)
