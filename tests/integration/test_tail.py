"""Reading partitions of a real broker up to their ends."""

from contextlib import closing

import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.support.streams_worker import steadily_written
from topics import clients, tail


@pytest.fixture
def reader(settings):
    with closing(clients.reader(settings)) as made:
        yield made


def test_all_partitions_are_read_to_their_ends(settings, reader):
    topic, producer = settings.topic("balances"), clients.producer(settings)
    for number in range(30):
        producer.produce(topic, str(number).encode(), timestamp=(1_700_000_000 + number) * 1000)
    producer.flush(10)
    partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
    starts = tail.at_times(reader, [clients.at(topic, number, 1_700_000_010) for number in partitions], timeout_s=10)
    read = [message.value() for message in tail.until_ends(reader, starts, silence_s=10)]
    assert sorted(map(int, read)) == list(range(10, 30))


def test_a_partition_that_only_fails_is_silent(settings, reader):
    with pytest.raises(KafkaException):
        list(tail.until_ends(reader, [TopicPartition(settings.topic("nowhere"), 0, 0)], silence_s=0.5))


def test_the_end_is_where_it_was_and_not_where_records_that_still_come_push_it(settings):
    topic, never_empty = settings.topic("balances"), {"fetch_wait_max_ms": 1000, "enable_partition_eof": True}
    with (
        closing(clients.consumer(settings, "reader", **never_empty)) as reader,
        steadily_written(settings, "balances", every_s=0.02) as writer,
    ):
        assert list(tail.until_ends(reader, [TopicPartition(topic, 0, 0)], silence_s=10))
        assert writer.is_alive()


def test_ends_are_reached_by_the_last_record_before_them_or_by_the_word_that_there_is_none(settings, reader):
    topic, producer = settings.topic("balances"), clients.producer(settings)
    for _ in range(3):
        producer.produce(topic, b"{}", partition=0)
    producer.flush(10)
    place = TopicPartition(topic, 0, 0)
    ends = tail.Ends(reader, [place], timeout_s=10)
    reader.assign([place])
    reached = []
    while len(reached) < 4:
        for message in reader.consume(10, timeout=1):
            ends.note(message)
            reached.append(ends.are_reached)
    assert reached == [False, False, True, True]
    assert tail.Ends(reader, [], timeout_s=10).are_reached
