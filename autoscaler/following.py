"""Follows a topic from a while ago, without a group; a call takes in what came since the last and waits for no more.

A topic that was not yet read to its end, or that the broker does not let be read, is unknown, not empty.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Message, TopicPartition

from topics import clients, tail
from topics.clock import Clock
from topics.errors import LagUnavailable
from topics.settings import Settings

_BATCH = 1000
_MAX_BATCHES = 20


@dataclass(frozen=True, slots=True)
class Source:
    """What is followed; `name` is without the prefix."""

    name: str
    partitions: int
    look_back_s: float
    """How old records are read at the start."""
    queued_kib: int
    """What the client may fetch ahead."""


class Follower:
    """For one thread; belongs to no group, commits nothing; a context.

    Invariant: `_unread` holds each partition whose end was not reached since it was placed or refused, and why.
    """

    def __init__(self, settings: Settings, clock: Clock, timeout_s: float, source: Source) -> None:
        self._topic, self._clock, self._timeout_s, self._source = settings.topic(source.name), clock, timeout_s, source
        self._settings = settings
        self._reader = self._opened()
        self._unread: dict[int, str] = {}
        self._ends: tail.Ends | None = None
        """None: those that were asked for may be older than a refusal."""
        self._assigned = False

    def _opened(self) -> Consumer:
        return clients.consumer(
            self._settings,
            self._settings.topic("rampmeter-reader"),
            queued_max_messages_kbytes=self._source.queued_kib,
            fetch_wait_max_ms=500,
            enable_partition_eof=True,
        )

    def begin(self) -> None:
        """Find the place to begin at, once; raises LagUnavailable until the topic could be found."""
        if self._assigned:
            return
        since_s = self._clock.wall_s() - self._source.look_back_s
        asked = [clients.at(self._topic, p, since_s) for p in range(self._source.partitions)]
        try:
            starts = tail.at_times(self._reader, asked, self._timeout_s)
            self._ends = self._asked()
        except KafkaException as error:
            # This client goes on believing what it learned of a topic that was just being made.
            self._reader.close()
            self._reader = self._opened()
            raise LagUnavailable(f"{self._source.name}: {error.args[0].str()}") from error
        self._reader.assign(
            [
                TopicPartition(self._topic, start.partition, start.offset if start.offset >= 0 else OFFSET_END)
                for start in starts
            ]
        )
        self._unread = {start.partition: "not yet read to its end" for start in starts}
        self._assigned = True

    def values(self) -> Iterator[bytes]:
        """What came since the last call, a bounded portion at a time; empty for a deleted key.

        Raises LagUnavailable after the last while there is a partition of which not all is known.
        """
        for _ in range(_MAX_BATCHES):
            messages = self._reader.consume(_BATCH, timeout=0)
            for message in messages:
                self._note(message)
                if message.error() is None:
                    yield message.value() or b""
            if len(messages) < _BATCH:
                break
        if self._unread:
            if self._ends is None:
                with suppress(KafkaException):  # what it was refused for is told below
                    self._ends = self._asked()
            partition, problem = next(iter(self._unread.items()))
            raise LagUnavailable(f"{self._source.name}, partition {partition}: {problem}")

    def _asked(self) -> tail.Ends:
        places = [TopicPartition(self._topic, p) for p in range(self._source.partitions)]
        return tail.Ends(self._reader, places, self._timeout_s)

    def _note(self, message: Message) -> None:
        """Take in how far a partition was read, or why not; what the client says of its group does not matter here."""
        error, partition, offset = message.error(), message.partition(), message.offset()
        if partition is None or message.topic() != self._topic:
            return
        if tail.is_end(message) if self._ends is None else self._ends.note(message):
            self._unread.pop(partition, None)
        if error is None or tail.is_end(message):
            return
        self._unread[partition], self._ends = error.str(), None
        if offset is not None and offset >= 0:
            # A refusal and an end are told once for a place: only from here again does the client tell the next.
            with suppress(KafkaException):  # the partition has gone
                self._reader.seek(TopicPartition(self._topic, partition, offset))

    def require_leader(self) -> None:
        """Raise LagUnavailable unless the topic can be asked now: `values` does not tell silence from an outage."""
        try:
            tail.watermarks(self._reader, TopicPartition(self._topic, 0), self._timeout_s)
        except KafkaException as error:
            raise LagUnavailable(f"{self._source.name}: {error.args[0].str()}") from error

    def close(self) -> None:
        """Leave the broker."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
