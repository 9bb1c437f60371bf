"""The rival of the whole path: one hop that copies records from a topic to the next and does nothing else."""

import signal
import sys

from confluent_kafka import TopicPartition

from tests.benchmarks.ground import PARTITIONS
from topics import clients
from topics.settings import Settings, load

POLL_S = 0.1


def relay(settings, source, target):
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    consumer, producer = clients.reader(settings), clients.producer(settings)
    consumer.assign([TopicPartition(source, partition, 0) for partition in range(PARTITIONS)])
    while not stopping:
        producer.poll(0)
        message = consumer.poll(POLL_S)
        if message is not None and message.error() is None:
            producer.produce(target, key=message.key(), value=message.value(), headers=message.headers() or [])
    producer.flush(5)
    consumer.close()


if __name__ == "__main__":
    relay(load(Settings), *sys.argv[1:3])
