"""Where answers go, what they tell, how a reader goes on in them."""

import base64
import uuid

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from rampmeter import client, streaming
from rampmeter.client import Client
from rampmeter.streaming import Cursor, Pieces
from tests.support.gpu import text_of, wait_until
from tests.support.services import GUARDED
from topics import clients
from topics.clock import SystemClock
from topics.local_broker import LocalBroker
from topics.outcomes import Outcome, Reason
from topics.records import Chunk, ReplyAddress


def waits_of(reply):
    waits = reply.waits
    return [waits.queued_s, waits.admitted_s, waits.lane_s, waits.engine_s]


def test_an_answer_tells_where_its_time_went(rig):
    rig.start(engine="simulated", window_requests=1).wait_ready()
    rig.put(rig.work("first", output_tokens=100))
    rig.put(rig.work("second", output_tokens=20), rig.work("late", deadline_s=SystemClock().wall_s() + 0.3))
    replies = rig.wait_replies(3)
    for reply in replies.values():
        whole_s = reply.timing.finished_s - reply.timing.arrived_s
        assert abs(sum(part or 0 for part in waits_of(reply)) - whole_s) < 0.05
    first, second, late = replies["first"].waits, replies["second"].waits, replies["late"].waits
    assert first.lane_s < second.lane_s
    assert 0 < first.first_token_s < first.engine_s
    assert replies["late"].outcome is Outcome.EXPIRED
    assert late.lane_s > 0.2
    assert (late.engine_s, late.first_token_s) == (None, None)


def test_a_reader_that_left_in_mid_stream_goes_on_where_it_stood(rig):
    correlation = base64.b64encode(b"\x00\xff").decode()
    address = ReplyAddress(topic=rig.settings.topic("replies"), correlation_b64=correlation)
    begin = Cursor("r1", correlation, address.topic, {0: 0, 1: 0}, Pieces())
    rig.put(rig.work("r1", stream=True, output_tokens=60, reply=address), rig.work("other", stream=True))
    rig.start(engine="simulated", speed=10)
    with Client(rig.settings, SystemClock()) as reader:
        answers = reader.resume(begin, 30)
        seen = [next(answers) for _ in range(3)]
        kept = reader.cursor
    with Client(rig.settings, SystemClock()) as reader:
        seen += reader.resume(kept, 30)
        pieces = reader.cursor.pieces
    *chunks, reply = seen
    assert [chunk.seq for chunk in chunks] == list(range(reply.chunks))
    assert "".join(map(client.text_of, chunks)) == text_of(reply)
    assert pieces.lacks(reply) == 0


def test_pieces_that_the_broker_did_not_take_show_as_a_gap_and_the_answer_has_the_whole_text(rig):
    rig.put(rig.work("r1", stream=True, output_tokens=60, reply=ReplyAddress(topic=rig.settings.topic("replies.gone"))))
    rig.start(engine="simulated", speed=10)
    reply = rig.wait_replies(1)["r1"]
    pieces = Pieces()
    for answer in rig.answers():
        if isinstance(answer, Chunk):
            pieces = streaming.take(pieces, answer).pieces
    assert pieces.lacks(reply) == reply.chunks > 0
    assert len(text_of(reply)) > 0


def topic_of(rig, name, **config):
    """A reply topic with one partition and settings of its own."""
    creating = clients.admin(rig.settings)  # named, since the call dies with it
    for made in creating.create_topics([NewTopic(rig.settings.topic(name), 1, config=config)]).values():
        made.result()
    topic = rig.settings.topic(name)
    wait_until(lambda: creating.list_topics(topic).topics[topic].partitions, "the topic is known")
    return topic


def asked(rig, request_id, topic, *, partition=None, **fields):
    return rig.work(request_id, reply=ReplyAddress(topic=topic, partition=partition), **fields)


def letters_of(rig, count):
    """The dead letters by id; all of them refer to lane records."""
    wait_until(lambda: len(rig.dead_letters()) >= count, f"{count} dead letters", rig.consumers[-1])
    letters = {letter.id: letter for letter in rig.dead_letters()}
    assert len(letters) == len(rig.dead_letters()) == count
    assert {letter.topic for letter in letters.values()} == {rig.lane()}
    return letters


def flows_on(rig, count):
    wait_until(lambda: rig.committed()[0].offset == count, "the offsets are committed", rig.consumers[-1])


def test_an_answer_that_cannot_go_where_it_was_asked_falls_back_and_an_operator_sees_it(rig):
    replies, gone = rig.settings.topic("replies"), rig.settings.topic("replies.gone")
    rig.put(
        asked(rig, "gone", gone),
        asked(rig, "gone too", gone, partition=3),
        asked(rig, "range", replies, partition=99),
        asked(rig, "good", replies, partition=1),
        partition=0,
    )
    consumer = rig.start()
    found = rig.wait_replies(4, limit_s=60)
    assert {request_id: (reply.outcome, reply.reason) for request_id, reply in found.items()} == {
        "gone": (Outcome.COMPLETED, Reason.REPLY_TOPIC_MISSING),
        "gone too": (Outcome.COMPLETED, Reason.REPLY_TOPIC_MISSING),
        "range": (Outcome.COMPLETED, Reason.REPLY_PARTITION_MISSING),
        "good": (Outcome.COMPLETED, Reason.NONE),
    }
    assert all(text_of(reply) == "ok" for reply in found.values())
    letters = letters_of(rig, 3)
    assert {request_id: letter.reason for request_id, letter in letters.items()} == {
        "gone": Reason.REPLY_TOPIC_MISSING,
        "gone too": Reason.REPLY_TOPIC_MISSING,
        "range": Reason.REPLY_PARTITION_MISSING,
    }
    assert letters["range"].detail == found["range"].detail
    assert f"{replies}[99] did not take the answer" in letters["range"].detail
    flows_on(rig, 4)
    assert consumer.metric("reply_fallbacks_total") == consumer.metric("dead_letters_total") == 3


def test_answers_that_only_together_are_too_large_for_their_topic_arrive_whole(rig):
    small = topic_of(rig, "replies.small", **{"max.message.bytes": "3000", "compression.type": "uncompressed"})
    rig.start(engine="null").wait_ready()
    rig.put(*(asked(rig, f"r{n}", small) for n in range(60)), partition=0)
    found = rig.wait_replies(60, "replies.small")
    assert {reply.outcome for reply in found.values()} == {Outcome.COMPLETED}
    flows_on(rig, 60)
    assert rig.dead_letters() == []


def test_an_answer_too_large_for_its_topic_alone_goes_there_without_its_response(rig):
    small = topic_of(rig, "replies.small", **{"max.message.bytes": "3000", "compression.type": "uncompressed"})
    rig.put(asked(rig, "big", small, output_tokens=4000), asked(rig, "fits", small, output_tokens=5), partition=0)
    rig.start(engine="simulated", speed=100)
    found = rig.wait_replies(2, "replies.small")
    assert (found["big"].outcome, found["big"].reason) == (Outcome.FAILED, Reason.REPLY_TOO_LARGE)
    assert (bytes(found["big"].body), found["big"].tokens.output) == (b"null", 4000)
    assert (found["fits"].outcome, len(text_of(found["fits"])) > 0) == (Outcome.COMPLETED, True)
    assert letters_of(rig, 1)["big"].reason is Reason.REPLY_TOO_LARGE
    flows_on(rig, 2)


def test_an_answer_that_fits_not_even_without_its_response_goes_to_the_default_topic(rig):
    tiny = topic_of(rig, "replies.tiny", **{"max.message.bytes": "100"})
    rig.put(asked(rig, "r1", tiny), partition=0)
    rig.start()
    assert rig.wait_replies(1)["r1"].reason is Reason.REPLY_TOO_LARGE
    wait_until(lambda: len(rig.dead_letters()) == 2, "a dead letter for each step", rig.consumers[-1])
    assert "to the default reply topic" in rig.dead_letters()[-1].detail
    flows_on(rig, 1)


@pytest.mark.behaviour(21)
@pytest.mark.parametrize(
    "correlation",
    [
        uuid.UUID(int=2**127 + 1).bytes,
        b"\x00\xff\x80\x01" * 4,
        b"order 17 \xc3\xa9",
        b"order-4711/\xc3\xa4",
        b"",
        b"\x00" * 16,
    ],
)
def test_a_spring_client_finds_its_answer_by_the_bytes_and_the_partition_that_it_named(rig, correlation):
    address = ReplyAddress(
        topic=rig.settings.topic("replies"),
        partition=1,
        correlation_b64=base64.b64encode(correlation).decode(),
        correlation_header="kafka_correlationId",
    )
    rig.put(rig.work("r1", reply=address, stream=True, output_tokens=20))
    rig.start(engine="simulated", speed=10)
    rig.wait_replies(1)
    answers = rig.read("replies")
    assert len(answers) > 1
    for message in answers:
        assert (message.partition(), message.key()) == (1, b"r1")
        assert [value for name, value in message.headers() if name == "kafka_correlationId"] == [correlation]


@pytest.mark.behaviour(20)
def test_a_reply_topic_that_may_not_be_written_holds_nobody_up(tmp_path, rig_on):
    with LocalBroker(tmp_path / "broker", properties=GUARDED) as broker:
        rig = rig_on(broker)
        readable, hidden = topic_of(rig, "replies.readable"), topic_of(rig, "replies.hidden")
        deny(rig.settings, {readable: AclOperation.WRITE, hidden: AclOperation.ALL})
        rig.put(asked(rig, "readable", readable), asked(rig, "hidden", hidden), rig.work("good"), partition=0)
        rig.start()
        found = rig.wait_replies(3, limit_s=60)
        letters = letters_of(rig, 2)
        for request_id in ("readable", "hidden"):
            assert (found[request_id].outcome, text_of(found[request_id])) == (Outcome.COMPLETED, "ok")
            assert found[request_id].reason is letters[request_id].reason is Reason.REPLY_TOPIC_FORBIDDEN
        flows_on(rig, 3)
        assert rig.consumers[-1].metric("reply_fallbacks_total") >= 1
        assert found["good"].outcome is Outcome.COMPLETED


def deny(settings, operations):
    """Forbid an operation on each topic to everyone who has no name."""
    rules = [
        AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation,
            AclPermissionType.DENY,
        )
        for topic, operation in operations.items()
    ]  # fmt: skip
    asking = clients.admin(settings)  # named, since the call dies with it
    for done in asking.create_acls(rules).values():
        done.result()
