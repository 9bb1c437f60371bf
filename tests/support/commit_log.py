"""Every commit of a group, in order, as the broker keeps them in `__consumer_offsets`."""

import struct
from dataclasses import dataclass
from itertools import pairwise

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from topics import clients, offset_map

TOPIC = "__consumer_offsets"
_OFFSET_KEYS = (0, 1)
_FLEXIBLE = 4
"""Since this version of a value its strings have their length in one byte or more."""


@dataclass(frozen=True)
class Commit:
    topic: str
    partition: int
    offset: int
    metadata: str

    def beyond(self):
        """Offsets that it lists as finished."""
        runs = offset_map.decode(self.offset, self.metadata)
        return {offset for first, last in runs for offset in range(first, last + 1)}

    def is_finished(self, offset):
        """Whether this commit counts the offset as finished."""
        return offset < self.offset or offset in self.beyond()


class Commits:
    """What `group` has committed; a context."""

    def __init__(self, settings, group):
        self._group, self._found = group, []
        self._reader = clients.reader(settings)
        self._partitions = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._reader.close()

    def of(self, topic, partition):
        """All commits of one partition until now."""
        if not self._partitions:  # the broker makes the topic for its first group
            found = self._reader.list_topics(TOPIC).topics[TOPIC].partitions
            self._partitions = [TopicPartition(TOPIC, p, OFFSET_BEGINNING) for p in found]
            self._reader.assign(self._partitions)
        while batch := self._reader.consume(1000, timeout=0.3):
            for message in batch:
                if message.error() is None:
                    self._note(message)
        return [one for one in self._found if (one.topic, one.partition) == (topic, partition)]

    def _note(self, message):
        key = _Bytes(message.key())
        if key.number("h") not in _OFFSET_KEYS or message.value() is None or key.text() != self._group:
            return
        topic, partition = key.text(), key.number("i")
        value = _Bytes(message.value())
        is_flexible = value.number("h") >= _FLEXIBLE
        offset, _ = value.number("q"), value.number("i")
        metadata = value.compact_text() if is_flexible else value.text()
        self._found.append(Commit(topic, partition, offset, metadata.rstrip("\0")))


def taken_back(commits):
    """Pairs of commits in a row of which the later counts as unfinished what the earlier counted as finished."""
    return [
        (earlier, later)
        for earlier, later in pairwise(commits)
        if later.offset < earlier.offset or any(offset >= later.offset for offset in earlier.beyond() - later.beyond())
    ]


class _Bytes:
    def __init__(self, data):
        self._data, self._at = data, 0

    def number(self, kind):
        (found,) = struct.unpack_from(f">{kind}", self._data, self._at)
        self._at += struct.calcsize(f">{kind}")
        return found

    def text(self):
        return self._text(self.number("h"))

    def compact_text(self):
        length = shift = 0
        while (byte := self.number("B")) & 0x80:
            length |= (byte & 0x7F) << shift
            shift += 7
        return self._text((length | byte << shift) - 1)

    def _text(self, length):
        self._at += length
        return self._data[self._at - length : self._at].decode()
