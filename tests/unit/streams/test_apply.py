from dataclasses import replace

import msgspec
import pytest

from streams import metrics
from streams.apply import Writer
from streams.fleet import Fleet
from streams.policy.admission import CANCELLED, REFUSED_EARLIER, Admit, Defer, Hold, Reject
from streams.policy.verification import Refusal
from streams.settings import Streams, StreamsSettings
from tests.support.builders import WALL_S, body, work
from tests.support.clock import FakeClock
from topics import codec
from topics.outcomes import Outcome, Reason
from topics.records import Length, Origin, Priority, Reply, ReplyAddress
from topics.trace_context import TraceContext

TRACE = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=1")


def writer(policy="ours", clock=None):
    settings = StreamsSettings(streams=Streams(policy=policy))
    clock = clock or FakeClock(WALL_S)
    return Writer(settings, clock, Fleet(settings, clock), "streams-1")


def decided(records):
    return codec.decode_decision(records[-1].value)


def test_admitted_work_lies_on_the_lane_of_its_class_with_its_id_and_cost():
    asked = work({"priority": Priority.HIGH}, {"length": Length.LONG, "cost_units": 12.5})
    lane, log = writer().apply(asked, Admit(), {})
    assert (lane.topic, lane.key, lane.headers) == ("lanes.default.high.long", b"r1", (("rampmeter_cost", b"12.500"),))
    assert lane.partition in range(4)
    on_lane = codec.decode_work(lane.value)
    assert on_lane.admitted_s == WALL_S
    assert bytes(on_lane.request.body) == body()
    assert (log.topic, decided([log]).verdict) == ("decisions", "admit")


def test_how_a_partition_was_found_is_counted():
    series = metrics.PLACEMENTS.labels("unknown")
    before = series._value.get()
    writer().apply(work(), Admit(), {})
    assert series._value.get() - before == 1


def test_work_that_was_admitted_before_keeps_its_time():
    lane, _ = writer().apply(work(admitted_s=WALL_S - 9), Admit(), {})
    assert codec.decode_work(lane.value).admitted_s == WALL_S - 9


@pytest.mark.parametrize("priority", list(Priority))
@pytest.mark.parametrize("length", list(Length))
def test_fifo_has_one_lane_and_keeps_the_labels(priority, length):
    lane, _ = writer("fifo").apply(work({"priority": priority}, {"length": length}), Admit(), {})
    on_lane = codec.decode_work(lane.value)
    assert lane.topic == "lanes.default.medium.short"
    assert (on_lane.request.priority, on_lane.price.length) == (priority, length)


def test_deferred_work_waits_on_the_topic_of_its_delay_and_counts_it():
    later, log = writer().apply(work(deferrals=2), Defer(5, Reason.BUDGET_POOL), {})
    assert (later.topic, later.key, codec.decode_work(later.value).deferrals) == ("deferred.5s", b"acme", 3)
    assert (decided([log]).verdict, decided([log]).inputs["delay_s"]) == ("defer", 5)


def test_a_rejection_answers_where_the_sender_waits():
    address = ReplyAddress(
        topic="replies.x", partition=3, correlation_b64="AP8=", correlation_header="kafka_correlationId"
    )
    reject = Reject(Outcome.REJECTED_BUDGET, Reason.BUDGET_TENANT, "spent", retry_after_s=1.5)
    answer, log = writer().apply(work({"reply": address}), reject, {})
    reply = codec.decode_answer(answer.value)
    assert (answer.topic, answer.partition, answer.key) == ("replies.x", 3, b"r1")
    assert ("kafka_correlationId", b"\x00\xff") in answer.headers
    assert (reply.outcome, reply.reason, reply.retry_after_s) == (reject.outcome, reject.reason, 1.5)
    assert reply.origin == work().request.origin
    assert decided([log]).inputs["retry_after_s"] == 1.5


def test_a_refusal_answers_and_is_logged():
    refusal = Refusal(
        "r9", ReplyAddress(topic="replies"), Origin(topic="t", partition=0, offset=1), Outcome.REJECTED_INVALID,
        Reason.UNKNOWN_MODEL, "model 'x' is not known", WALL_S,
    )  # fmt: skip
    records = writer().refusal(replace(refusal, trace=TRACE), repeat=True)
    reply = codec.decode_answer(records[0].value)
    assert (reply.id, reply.reason, reply.repeat, reply.origin) == ("r9", Reason.UNKNOWN_MODEL, True, refusal.origin)
    assert decided(records).reason == Reason.UNKNOWN_MODEL
    assert records[0].headers[1:] == tuple(TRACE.headers())


def test_a_second_asker_gets_the_first_answer_at_its_own_address():
    second = work({"reply": ReplyAddress(topic="replies.b"), "origin": Origin(topic="t", partition=1, offset=9)})
    copy = writer().repeated(second, Reply(id="r1", outcome=Outcome.COMPLETED, body=msgspec.Raw(b'{"a": 1}')))
    reply = codec.decode_answer(copy.value)
    assert (copy.topic, reply.repeat, reply.origin, bytes(reply.body)) == (
        "replies.b",
        True,
        second.request.origin,
        b'{"a": 1}',
    )


VERDICTS = [
    Admit(1.5, 3),
    Hold(0.1, Reason.FAIR_SHARE),
    Defer(1, Reason.BUDGET_POOL),
    Reject(Outcome.REJECTED_BUDGET, Reason.BUDGET_TENANT, "spent", 1.5),
    REFUSED_EARLIER,
    CANCELLED,
]


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: type(verdict).__name__)
def test_a_decision_says_everything_but_the_prompt(verdict):
    *effects, log = writer().apply(work({"body": msgspec.Raw(body("SENTINEL"))}), verdict, {"budget_wait_s": 0.5})
    assert len(effects) == (0 if isinstance(verdict, Hold) else 1)
    assert b"SENTINEL" not in log.value
    assert {"tenant", "cost_units", "policy_version", "length_claim", "budget_wait_s"} <= set(decided([log]).inputs)
    assert decided([log]).settings_hash


def test_the_lane_record_says_what_wait_was_foreseen_and_whether_a_budget_holds_the_cost():
    lane, _ = writer().apply(work(), Admit(1.5, 3), {}, unreserved=True)
    on_lane = codec.decode_work(lane.value)
    assert (on_lane.wait_estimate_s, on_lane.position, on_lane.unreserved) == (1.5, 3, True)
