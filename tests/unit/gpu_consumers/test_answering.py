import pytest

from gpu_consumers.answering import EXPIRED, Ending, Used, Writer, read_work, used_by
from gpu_consumers.assignment import Assignment, Entry, Fetched
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.fallback import Place, Route
from gpu_consumers.policy.selection import Lane
from tests.support.builders import WALL_S, work
from topics import codec, trace_context
from topics.errors import DecodeError
from topics.outcomes import Outcome, Reason
from topics.records import Control, ControlAction, ControlKind, Length, ReplyAddress, Tier, Tokens
from topics.settings import Settings, Topics

SETTINGS = Settings(topics=Topics(prefix="p."))
WRITER = Writer(SETTINGS, "gpu-1")
TOKENS = Tokens(prompt=100, output=10)


def entry(made=None):
    where = Assignment(
        "p.lanes.default.medium.short", 3, Lane(Tier.MEDIUM, Length.SHORT), OffsetTracker(None, [], window_records=9)
    )
    made = made or work()
    value = codec.encode(made)
    return Entry(Fetched(where, 42, value, b"r1", WALL_S), made, Ask(100, 100, 100.0))


def test_a_reply_carries_what_it_cost_at_the_models_price():
    reply = WRITER.reply(entry(), Ending(Outcome.COMPLETED, tokens=TOKENS, body=b'{"a":1}'), WALL_S + 9)
    assert reply.cost_units == pytest.approx(100 * 0.067 + 10 * 0.27)
    assert (reply.tokens, bytes(reply.body), reply.timing.finished_s) == (TOKENS, b'{"a":1}', WALL_S + 9)
    assert (reply.priority, reply.length, reply.pool) == ("medium", "short", "default")


def test_the_cost_of_a_model_without_a_price_is_unknown_not_zero():
    assert WRITER.cost_units(work({"model": "gone-model"}), TOKENS) is None


def test_cached_prompt_tokens_and_the_coefficient_of_admission_make_the_cost():
    tokens = Tokens(prompt=100, output=10, cached=80)
    made = work(price_fields={"coefficient": 2.0})
    assert WRITER.cost_units(made, tokens) == pytest.approx(2.0 * (20 * 0.067 + 80 * 0.0067 + 10 * 0.27))


def test_a_reply_tells_what_was_predicted_at_admission():
    for made, told in ((work(wait_estimate_s=2.5, position=7), (2.5, 7)), (work(), (None, None))):
        reply = WRITER.reply(entry(made), EXPIRED, WALL_S)
        assert (reply.wait_estimate_s, reply.position) == told


def test_an_expired_one_costs_nothing():
    reply = WRITER.reply(entry(), EXPIRED, WALL_S)
    usage = usage_of(work(), used_by(reply, WALL_S, None))
    assert (reply.cost_units, usage.tokens, usage.reserved_units) == (0.0, Tokens(prompt=0, output=0), 100.0)
    assert (usage.service_s, usage.waited_s, usage.kv_token_s, usage.partial) == (None, None, None, False)


def usage_of(made, used):
    return codec.decode_usage(WRITER.usage_letter(made, used).value)


def test_usage_tells_what_was_expected_and_what_it_took():
    made = work({"template": "t1"}, {"coefficient": 1.5, "expected_output_tokens": 60, "kv_token_s": 700.0})
    used = Used(Outcome.COMPLETED, TOKENS, 1, finished_s=WALL_S + 6, started_s=WALL_S + 2, engine_s=0.5)
    usage = usage_of(made, used)
    assert (usage.template, usage.coefficient, usage.engine_s) == ("t1", 1.5, 0.5)
    assert (usage.expected_prompt_tokens, usage.expected_output_tokens) == (100, 60)
    assert (usage.service_s, usage.kv_token_s, usage.expected_kv_token_s) == (4.0, 4.0 * (100 + 10 / 2), 700.0)
    assert usage.waited_s == 2.0


def test_every_record_of_a_request_carries_its_trace():
    sent = [("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("tracestate", b"a=1")]
    made = work({name: value.decode() for name, value in sent})
    traced = entry(made)
    reply = WRITER.reply(traced, EXPIRED, WALL_S)
    assert WRITER.reply_letter(made, reply).headers[-2:] == sent
    assert WRITER.chunk_letter(traced, b"{}").headers[-2:] == sent
    assert WRITER.usage_letter(made, used_by(reply, WALL_S, None)).headers == sent
    again = codec.decode_work(WRITER.retry_letter(made).value)
    assert trace_context.of(again.request).headers() == sent


def test_what_was_admitted_without_a_reservation_holds_no_units():
    used = Used(Outcome.COMPLETED, TOKENS, 1, finished_s=WALL_S)
    assert usage_of(work(unreserved=True), used).reserved_units == 0.0


def test_the_decision_to_cancel_names_order_and_request_and_no_text():
    order = Control(
        id="o1", action=ControlAction.CANCEL, kind=ControlKind.REQUEST, name="r1", at_s=WALL_S, by="someone"
    )
    letter = WRITER.cancel_letter(work(attempt=2), order, "running", WALL_S + 1)
    decision = codec.decode_decision(letter.value)
    assert (letter.topic, letter.key, decision.id, decision.by) == ("p.decisions", b"r1", "r1", "gpu-1")
    assert (decision.stage, decision.verdict, decision.reason) == ("control", "cancel", "cancelled")
    assert decision.inputs == {"attempt": 2, "where": "running", "tenant": "acme", "order": "o1"}
    assert b"hello there" not in letter.value


@pytest.mark.parametrize(
    ("place", "topic", "partition"),
    [
        (Place.ASKED, "p.replies.x", 7),
        (Place.ANY_PARTITION, "p.replies.x", None),
        (Place.DEFAULT, "p.replies", None),
    ],
)
def test_a_reply_goes_where_its_route_says(place, topic, partition):
    made = work({"reply": ReplyAddress(topic="p.replies.x", partition=7)})
    reply = WRITER.reply(entry(made), EXPIRED, WALL_S)
    letter = WRITER.reply_letter(made, reply, Route(place, is_alone=True))
    assert (letter.topic, letter.partition, letter.key, letter.is_alone) == (topic, partition, b"r1", True)


@pytest.mark.parametrize(
    ("attempt", "topic"), [(1, "p.retries.1s"), (2, "p.retries.10s"), (3, "p.retries.10s"), (9, "p.retries.10s")]
)
def test_retries_wait_longer_with_each_attempt(attempt, topic):
    letter = WRITER.retry_letter(work(attempt=attempt))
    assert (letter.topic, letter.key) == (topic, b"acme")
    assert codec.decode_work(letter.value).attempt == attempt + 1


def test_a_dead_letter_names_the_lane_record_and_not_its_text():
    letter = WRITER.dead_letter(entry().fetched, Reason.ATTEMPTS_EXHAUSTED, "three attempts failed", WALL_S, "r1")
    dead = codec.decode_dead_letter(letter.value)
    assert (dead.topic, dead.partition, dead.offset, dead.id) == ("p.lanes.default.medium.short", 3, 42, "r1")
    assert b"hello there" not in letter.value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, Reason.EMPTY_VALUE),
        (b"", Reason.EMPTY_VALUE),
        (b"\xff\xfe", Reason.UNDECODABLE),
        (b"{", Reason.UNDECODABLE),
        (b"[]", Reason.WRONG_SHAPE),
        (b'{"request": {"id": 5}}', Reason.WRONG_SHAPE),
        (b"[" * 10_000, Reason.WRONG_SHAPE),
    ],
)
def test_an_unreadable_record_is_told_apart_by_its_fault(value, reason):
    with pytest.raises(DecodeError) as caught:
        read_work(value)
    assert caught.value.reason is reason
