"""Retries, dead letters and orders with a real streams worker."""

import time

import pytest

from rampmeter import audit, dlq
from rampmeter import control as orders
from rampmeter.control import Change
from rampmeter.dead_letters import Manner
from rampmeter.dlq import Replay
from rampmeter.output import Output
from tests.support.builders import work
from tests.support.command import one_line_of_json, run
from tests.support.streams_worker import Site, StreamsWorker, chat
from topics import codec
from topics.clock import SystemClock
from topics.outcomes import Outcome, Reason
from topics.records import ControlAction, ControlKind, DeadLetter, Reply

CLOCK = SystemClock()
LANE = "lanes.cpu.medium.short"
MODEL = "smollm2-135m"


@pytest.fixture(scope="module")
def site(broker, redis_server):
    made = Site(broker, redis_server.url, 7)
    yield made
    made.close()


@pytest.fixture(scope="module")
def worker(site, tmp_path_factory):
    running = StreamsWorker(site.env, tmp_path_factory.mktemp("streams") / "worker.log").start()
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log()


@pytest.fixture(scope="module")
def lane(site):
    return site.log(LANE)


def ask(site, request_id, *, tenant=b"acme", **fields):
    headers = [("rampmeter_id", request_id.encode()), ("rampmeter_tenant", tenant)]
    return site.send(chat(model=MODEL, max_tokens=5, **fields), headers=headers)


def of(messages, request_id):
    return [message for message in messages if message.key() == request_id.encode()]


def on_lane(lane, request_id):
    """The lane's only record of this id."""
    (found,) = lane.until(lambda messages: of(messages, request_id))
    return found, codec.decode_work(found.value())


def replay(site, number):
    asked = Replay([number], Manner(), dry=False)
    assert dlq.replay_letters(site.settings, asked, CLOCK, Output(CLOCK)) == 0


def bury(site, message, request_id):
    """The dead letter that a consumer writes about a lane record whose attempts are spent."""
    letter = DeadLetter(
        topic=message.topic(), partition=message.partition(), offset=message.offset(), at_s=CLOCK.wall_s(),
        reason=Reason.ATTEMPTS_EXHAUSTED, detail="three attempts failed", sha256=codec.digest(message.value()),
        size_bytes=len(message.value()), by="gpu", id=request_id,
    )  # fmt: skip
    return site.send(codec.encode(letter), "dead_letters").offset


def test_a_retry_waits_its_delay_keeps_age_deadline_and_attempt_and_queues_behind_its_class(site, worker, lane):
    ask(site, "fresh")
    fresh, _ = on_lane(lane, "fresh")
    now_s = time.time()
    fields = {"id": "again", "model": MODEL, "arrived_s": now_s - 100, "deadline_s": now_s + 600}
    retried = work(fields, {"pool": "cpu"}, attempt=2, admitted_s=now_s - 90)
    site.send(codec.encode(retried), "retries.1s")
    found, again = on_lane(lane, "again")
    assert again == retried
    assert found.offset() > fresh.offset()
    assert found.timestamp()[1] / 1000 >= now_s + 1
    assert of(site.log("lanes.cpu.aged.short").poll(), "again") == [], "its age let it overtake"


def test_exhausted_work_is_admitted_anew_under_its_new_id_and_only_once(site, worker, lane):
    ask(site, "r1")
    message, first = on_lane(lane, "r1")
    number = bury(site, message, "r1")
    replay(site, number)
    _, second = on_lane(lane, f"r1~replay-{number}")
    assert (second.attempt, second.request.body, second.request.tenant) == (1, first.request.body, "acme")
    assert second.request.arrived_s > first.request.arrived_s
    replay(site, number)
    ask(site, "marker")
    on_lane(lane, "marker")
    assert len(of(lane.poll(), f"r1~replay-{number}")) == 1, "a second replay ran again"


def test_a_record_that_is_still_unreadable_gets_one_answer_more_and_the_audit_is_clean(site, worker):
    first = codec.fallback_id(site.send(b"\xff", headers=[("rampmeter_id", b"u1")]))
    letters, replies = site.log("dead_letters"), site.log("replies")

    def number_of(request_id):
        def found(messages):
            decoded = [(m.offset(), codec.decode_dead_letter(m.value())) for m in messages]
            return [offset + 1 for offset, letter in decoded if letter.id == request_id]

        return letters.until(found)[0] - 1

    number = number_of(first)
    replay(site, number)
    again = letters.until(lambda found: found[1:])[0].value()
    (answer,) = replies.until(lambda messages: of(messages, codec.decode_dead_letter(again).id))
    assert codec.decode_answer(answer.value()).reason is Reason.UNDECODABLE
    found = audit.report(audit.read(site.settings, CLOCK.wall_s() - 600), CLOCK.wall_s(), 600.0)
    assert found.is_clean()
    assert found.replays >= 1


def give(site, action, kind, name, **change):
    order = orders.make_order(site.settings, CLOCK, action, (kind, name), Change(**change))
    orders.send_order(site.settings, order)
    return order


def recorded(site, order):
    """The worker's record of an order, which it makes after the order holds."""
    (found,) = site.log("decisions").until(lambda messages: of(messages, order.id))
    return codec.decode_decision(found.value())


def test_a_cancellation_overtakes_its_request(site, worker, tmp_path):
    order = give(site, ControlAction.CANCEL, ControlKind.REQUEST, "doomed", tenant="acme")
    assert recorded(site, order).verdict == "cancel"
    ask(site, "doomed")
    (found,) = site.log("replies").until(lambda messages: of(messages, "doomed"))
    reply = codec.decode_answer(found.value())
    assert isinstance(reply, Reply)
    assert (reply.outcome, reply.reason) == (Outcome.CANCELLED, Reason.CANCELLED)
    done = run("cancel", "doomed", "--wait", "30", "--json", cwd=tmp_path, env=site.env)
    assert (done.returncode, one_line_of_json(done)["outcome"]) == (0, "cancelled")


def test_who_waits_for_a_cancellation_that_came_too_late_learns_how_it_ended(site, tmp_path):
    reply = Reply(id="early", outcome=Outcome.COMPLETED)
    site.send(codec.encode(reply), "replies", key=b"early")
    done = run("cancel", "early", "--wait", "30", cwd=tmp_path, env=site.env)
    assert (done.returncode, "it ended as completed" in done.stderr) == (1, True)
    done = run("cancel", "never", "--wait", "0.5", "--json", cwd=tmp_path, env=site.env)
    assert (done.returncode, one_line_of_json(done)["outcome"]) == (1, None)


def test_a_paused_tenant_waits_and_a_resumed_one_goes_on(site, worker, lane):
    recorded(site, give(site, ControlAction.PAUSE, ControlKind.TENANT, "halted"))
    ask(site, "waits", tenant=b"halted")
    ask(site, "passes")
    on_lane(lane, "passes")
    site.log("decisions").until(lambda messages: of(messages, "waits"))
    assert of(lane.poll(), "waits") == []
    recorded(site, give(site, ControlAction.RESUME, ControlKind.TENANT, "halted"))
    on_lane(lane, "waits")


def test_live_limits_bind_the_next_request_and_a_reset_frees_it(site, worker, lane):
    recorded(site, give(site, ControlAction.LIMITS, ControlKind.TENANT, "tight", refill_units_per_s=1e-6))
    ask(site, "too-dear", tenant=b"tight")
    (found,) = site.log("replies").until(lambda messages: of(messages, "too-dear"))
    assert codec.decode_answer(found.value()).outcome is Outcome.REJECTED_TOO_LARGE
    recorded(site, give(site, ControlAction.LIMITS, ControlKind.TENANT, "tight"))
    ask(site, "affordable", tenant=b"tight")
    on_lane(lane, "affordable")
