"""Servers that die, refuse and go away under a consumer: who pays for it?"""

import math
import time

import msgspec
import pytest

from tests.support.builders import body
from tests.support.gpu import wait_until
from tests.support.mortal_server import MARK, Keeper
from topics import codec
from topics.outcomes import Outcome, Reason


@pytest.fixture
def mortal():
    keeper = Keeper()
    yield keeper
    keeper.close()


def openai(url, **gpu):
    return {"engine": "openai", "openai_base_url": url, "openai_probe_s": 0.1, **gpu}


def all_committed(rig, count, consumer):
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == count, "all is committed", consumer)


def retry(rig, attempt, consumer):
    """The work that streams would put on its lane for this attempt."""

    def found():
        works = [codec.decode_work(m.value()) for name in ("retries.1s", "retries.10s") for m in rig.read(name)]
        return [work for work in works if work.attempt == attempt]

    wait_until(found, "a retry", consumer)
    (work,) = found()
    return work


@pytest.mark.parametrize("attempts", [1, 3])
def test_of_those_who_ran_in_a_server_that_died_only_the_cause_is_charged(rig, mortal, attempts):
    """Behaviour 18."""
    neighbours = [f"r{n}" for n in range(7)]
    rig.put(*(rig.work(request_id) for request_id in neighbours[:3]), partition=0)
    rig.put(rig.work("poison", body=msgspec.Raw(body(MARK))), partition=0)
    rig.put(*(rig.work(request_id) for request_id in neighbours[3:]), partition=0)
    consumer = rig.start(**openai(mortal.url, window_requests=8, max_attempts=attempts))
    for attempt in range(2, attempts + 1):
        again = retry(rig, attempt, consumer)
        rig.put(*(rig.work(f"fresh{attempt}-{n}") for n in range(3)), again, partition=1)
    fresh = 3 * (attempts - 1)
    replies = rig.wait_replies(8 + fresh, limit_s=60)
    poison = replies.pop("poison")
    assert (poison.outcome, poison.reason, poison.attempt) == (Outcome.FAILED, Reason.ATTEMPTS_EXHAUSTED, attempts)
    assert {(reply.outcome, reply.attempt) for reply in replies.values()} == {(Outcome.COMPLETED, 1)}
    wait_until(rig.dead_letters, "a dead letter", consumer)
    (letter,) = rig.dead_letters()
    assert (letter.id, letter.reason) == ("poison", Reason.ATTEMPTS_EXHAUSTED)
    assert f"{attempts} attempts failed" in letter.detail
    assert (letter.topic, letter.partition) == (rig.lane(), 0 if attempts == 1 else 1)
    assert attempts > 1 or letter.offset == 3
    assert mortal.deaths <= 1 + math.log2(8) + attempts - 1
    all_committed(rig, 8 + fresh + attempts - 1, consumer)
    assert MARK not in consumer.log()
    assert consumer.terminate() == 0


def test_a_server_that_is_killed_under_healthy_requests_costs_them_nothing(rig, mortal):
    consumer = rig.start(**openai(mortal.url, window_requests=8)).wait_ready()
    rig.put(*(rig.work(f"r{n}", stream=True) for n in range(20)))
    wait_until(lambda: consumer.metric("inflight_requests") == 8, "eight run", consumer)
    mortal.kill()
    replies = rig.wait_replies(20)
    assert {(reply.outcome, reply.attempt) for reply in replies.values()} == {(Outcome.COMPLETED, 1)}
    assert (consumer.metric("retries_total"), rig.dead_letters()) == (0, [])
    for reply in replies.values():
        chunks = [a for a in rig.answers() if a.id == reply.id and a is not reply]
        assert [c.seq for c in chunks if hasattr(c, "seq")][-reply.chunks :] == list(range(reply.chunks))


@pytest.mark.parametrize("fault", ["gone", "503"])
def test_while_the_server_is_away_requests_stay_on_their_lanes_and_burn_no_attempts(rig, hosted, fault):
    consumer = rig.start(**openai(hosted.server.url, window_requests=4)).wait_ready()
    if fault == "gone":
        hosted.call(hosted.server.go_away())
    else:
        hosted.server.status = 503
    rig.put(*(rig.work(f"r{n}") for n in range(12)))
    rig.put(rig.work("late", deadline_s=time.time() + 2))
    wait_until(lambda: consumer.metric("engine_open") == 0, "the breaker opens", consumer)
    wait_until(lambda: "times in a row" in consumer.get("readyz")[1], "it is not ready", consumer)
    assert consumer.get("livez")[0] == 200
    wait_until(lambda: any(t.intake == "closed by engine" for t in rig.telemetry()), "telemetry says so", consumer)
    late = rig.wait_replies(1)["late"]
    assert (late.outcome, late.attempt) == (Outcome.EXPIRED, 1)
    assert late.timing.finished_s - late.timing.arrived_s < 4
    claims = consumer.metric("claims_total")
    seen = len(hosted.server.bodies)
    time.sleep(1)
    assert consumer.metric("claims_total") == claims, "nothing is dispatched"
    assert all(b"hello there" not in probe for probe in hosted.server.bodies[seen:])
    assert (len(rig.by_id()), consumer.metric("inflight_requests")) == (1, 0)
    if fault == "gone":
        hosted.call(hosted.server.come_back())
    else:
        hosted.server.status = 200
    replies = rig.wait_replies(13)
    assert {(r.outcome, r.attempt) for r in replies.values() if r.id != "late"} == {(Outcome.COMPLETED, 1)}
    assert consumer.metric("retries_total") == 0
    wait_until(lambda: consumer.get("readyz")[0] == 200, "it is ready again", consumer)
    assert "closed by engine" in consumer.log()
    all_committed(rig, 13, consumer)


def test_a_busy_server_is_left_alone_for_as_long_as_it_asks_and_nobody_pays(rig, hosted):
    server = hosted.server
    server.status, server.retry_after = 429, "3"
    consumer = rig.start(**openai(server.url, window_requests=4, max_attempts=1)).wait_ready()
    rig.put(*(rig.work(f"r{n}") for n in range(8)))
    wait_until(lambda: server.bodies, "it is asked", consumer)
    since_s = time.monotonic()
    wait_until(lambda: "asked for a pause" in consumer.get("readyz")[1], "it says so", consumer)
    time.sleep(1)
    assert len(server.bodies) <= 4, "only those who were on their way"
    server.status = 200
    replies = rig.wait_replies(8)
    assert time.monotonic() - since_s > 2.5
    assert {(reply.outcome, reply.attempt) for reply in replies.values()} == {(Outcome.COMPLETED, 1)}


def test_a_request_that_its_server_never_takes_is_given_up_in_the_end(rig, hosted):
    server = hosted.server
    server.status, server.retry_after = 429, "0"
    consumer = rig.start(**openai(server.url, max_attempts=1, refused_wait_s=1.5)).wait_ready()
    rig.put(rig.work("r1"))
    reply = rig.wait_replies(1)["r1"]
    assert (reply.outcome, reply.reason) == (Outcome.FAILED, Reason.ATTEMPTS_EXHAUSTED)
    assert "429" in reply.detail
    assert 5 <= len(server.bodies) <= 30
    all_committed(rig, 1, consumer)


def test_a_static_batch_that_fails_as_a_whole_is_tried_by_halves(rig, mortal):
    rig.put(*(rig.work(f"r{n}") for n in range(7)), rig.work("poison", body=msgspec.Raw(body(MARK))))
    rig.start(**openai(mortal.url, static_batch_size=8, static_window_medium_s=2, max_attempts=1))
    replies = rig.wait_replies(8, limit_s=60)
    assert replies.pop("poison").reason is Reason.ATTEMPTS_EXHAUSTED
    assert {(reply.outcome, reply.attempt) for reply in replies.values()} == {(Outcome.COMPLETED, 1)}
    assert mortal.deaths <= 1 + math.log2(8)


def test_what_fails_while_its_consumer_drains_is_given_back_and_costs_nothing(rig, hosted):
    keeper = Keeper(pause_s=30)
    try:
        rig.put(*(rig.work(f"r{n}") for n in range(8)))
        consumer = rig.start(**openai(keeper.url, window_requests=8, grace_s=60, max_attempts=1))
        wait_until(lambda: consumer.metric("inflight_requests") == 8, "eight run", consumer)
        consumer.process.terminate()
        wait_until(lambda: "draining" in consumer.get("readyz")[1], "it drains", consumer)
        keeper.kill()
        assert consumer.process.wait(30) == 0
    finally:
        keeper.close()
    assert rig.replies() == []
    consumer = rig.start(**openai(hosted.server.url, max_attempts=1))
    replies = rig.wait_replies(8)
    assert {(reply.outcome, reply.attempt) for reply in replies.values()} == {(Outcome.COMPLETED, 1)}
    assert consumer.metric("claims_total", verdict="takeover") == 0
