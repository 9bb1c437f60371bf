"""Waits for the transactions that are open: until they end, what they wrote and all behind it cannot be read."""

from collections.abc import Sequence
from contextlib import closing
from threading import Event

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from topics import clients, tail
from topics.settings import Settings

_PAUSE_S = 0.1


def wait(settings: Settings, reader: Consumer, partitions: Sequence[TopicPartition], deadline_s: float) -> None:
    """Return once `reader` can read all that lies in these partitions now; raises KafkaException when it takes longer.

    Without transactions it always can.  What a dead process left open the broker ends after its time limit.
    """
    group = settings.topic("rampmeter-reader")
    with closing(clients.consumer(settings, group, isolation_level="read_uncommitted")) as unguarded:
        ends = [_end(unguarded, place, deadline_s) for place in partitions]
    pause = Event()
    for _ in range(int(deadline_s / _PAUSE_S)):
        if all(_end(reader, place, deadline_s) >= end for place, end in zip(partitions, ends, strict=True)):
            return
        pause.wait(_PAUSE_S)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"a transaction is open for {deadline_s:g} s"))  # noqa: SLF001


def _end(reader: Consumer, place: TopicPartition, timeout_s: float) -> int:
    """Behind the last record that this reader may read."""
    return tail.watermarks(reader, place, timeout_s)[1]
