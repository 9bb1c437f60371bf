"""Reading partitions of a real broker up to their ends."""

from contextlib import closing

import pytest
from confluent_kafka import KafkaException, TopicPartition

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
