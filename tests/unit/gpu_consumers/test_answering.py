import pytest

from gpu_consumers.answering import EXPIRED, Ending, Writer, read_work
from gpu_consumers.assignment import Assignment, Entry, Fetched
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.selection import Lane
from tests.support.builders import WALL_S, work
from topics import codec
from topics.errors import DecodeError
from topics.outcomes import Outcome, Reason
from topics.records import Length, ReplyAddress, Tier, Tokens
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
    assert WRITER.cost_units("gone-model", TOKENS) is None


def test_an_expired_one_costs_nothing():
    reply = WRITER.reply(entry(), EXPIRED, WALL_S)
    usage = codec.decode_usage(WRITER.usage_letter(work(), reply, None).value)
    assert (reply.cost_units, usage.tokens, usage.reserved_units) == (0.0, Tokens(prompt=0, output=0), 100.0)


@pytest.mark.parametrize(
    ("fallback", "topic", "partition"), [(0, "p.replies.x", 7), (1, "p.replies.x", None), (2, "p.replies", None)]
)
def test_a_reply_falls_back_step_by_step(fallback, topic, partition):
    made = work({"reply": ReplyAddress(topic="p.replies.x", partition=7)})
    reply = WRITER.reply(entry(made), EXPIRED, WALL_S)
    letter = WRITER.reply_letter(made, reply, fallback)
    assert (letter.topic, letter.partition, letter.key) == (topic, partition, b"r1")


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
