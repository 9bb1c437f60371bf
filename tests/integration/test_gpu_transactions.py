"""`gpu.delivery` transactional: an answer and its offset are there together or not at all."""

import random
import time

import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.support.gpu import wait_until
from topics import clients
from topics.outcomes import Outcome, Reason
from topics.records import Chunk, Reply, ReplyAddress


def start(rig, **gpu):
    return rig.start(delivery="transactional", **gpu)


def committed_records(rig, lane=None):
    return sum(tp.offset for tp in rig.committed(lane).values())


def written(rig, name):
    """How many records of a topic were ever written, those of aborted transactions too; markers are not read."""
    topic = rig.settings.topic(name)
    reader = clients.consumer(
        rig.settings, "uncommitted", isolation_level="read_uncommitted", enable_partition_eof=True
    )
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    count = ends = 0
    while ends < 2:
        for message in reader.consume(1000, timeout=1):
            count += message.error() is None
            ends += message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF
    reader.close()
    return count


def test_requests_are_answered_and_their_offsets_committed_with_their_usage(rig):
    consumer = start(rig).wait_ready()
    rig.put(*(rig.work(f"r{n}") for n in range(80)))
    assert len(rig.wait_replies(80, limit_s=120)) == 80
    wait_until(lambda: committed_records(rig) == 80, "all offsets are committed", consumer)
    wait_until(lambda: len(rig.usages()) == 80, "usage of all", consumer)
    assert consumer.metric("commits_total", result="ok") < 80
    assert consumer.terminate() == 0


def test_the_map_of_finished_records_goes_with_the_transaction(rig):
    rig.put(rig.work("long", output_tokens=4000), *(rig.work(f"r{n}", output_tokens=5) for n in range(9)), partition=0)
    consumer = start(rig, engine="simulated", window_requests=16)
    rig.wait_replies(9, limit_s=120)
    wait_until(lambda: rig.committed() and rig.committed()[0].metadata, "the map is committed", consumer)
    assert rig.committed()[0].offset == 0
    consumer.kill()
    again = start(rig, engine="simulated", speed=20)
    assert len(rig.wait_replies(10, limit_s=120)) == 10
    wait_until(lambda: committed_records(rig) == 10, "all is committed", again)
    assert again.metric("claims_total", verdict="done") == 0


def test_an_answer_lies_behind_its_chunks(rig):
    rig.put(*(rig.work(f"r{n}", stream=True, output_tokens=30) for n in range(8)))
    start(rig, engine="simulated", speed=20)
    rig.wait_replies(8, limit_s=120)
    seen = {}
    for answer in rig.answers():
        if isinstance(answer, Chunk):
            seen[answer.id] = seen.get(answer.id, 0) + 1
        else:
            assert seen[answer.id] == answer.chunks


def test_an_answer_that_its_topic_refuses_falls_back_and_takes_no_other_with_it(rig):
    gone, replies = rig.settings.topic("replies.gone"), rig.settings.topic("replies")
    rig.put(
        rig.work("gone", reply=ReplyAddress(topic=gone)),
        rig.work("range", reply=ReplyAddress(topic=replies, partition=99)),
        *(rig.work(f"r{n}") for n in range(6)),
        partition=0,
    )
    consumer = start(rig)
    found = rig.wait_replies(8, limit_s=90)
    assert {reply.outcome for reply in found.values()} == {Outcome.COMPLETED}
    assert (found["gone"].reason, found["range"].reason) == (
        Reason.REPLY_TOPIC_MISSING,
        Reason.REPLY_PARTITION_MISSING,
    )
    wait_until(lambda: committed_records(rig) == 8, "all is committed", consumer)
    assert len(rig.dead_letters()) == 2
    assert len(rig.usages()) == 8


@pytest.mark.behaviour(22)
@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_readers_with_one_answer_to_each(rig):
    dice, count = random.Random(7), 200
    rig.put(*(rig.work(f"r{n}", output_tokens=10) for n in range(count)))
    for turn in range(3):
        consumer = start(rig, engine="simulated", speed=4, window_requests=16, consumer_id=f"c{turn}")
        before = len(rig.by_id())
        wait_until(lambda before=before: len(rig.by_id()) > before, "it answers", consumer)
        time.sleep(dice.random() * 0.3)
        consumer.kill()
    last = start(rig, engine="simulated", speed=20, consumer_id="last")
    assert len(rig.wait_replies(count, limit_s=200)) == count
    wait_until(lambda: committed_records(rig) == count, "all is committed", last)
    assert len(rig.by_id()) == count
    assert {type(answer) for answer in rig.answers()} == {Reply}
    assert written(rig, "replies") >= count
