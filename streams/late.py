"""Reads what is late on a pool's lanes: from committed offsets and the clock first, records only where they count.

Never joins the consumers' group and never commits.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, Message, TopicPartition

from streams.policy.aging import Lane
from topics import catalog, clients, codec, offset_map, tail
from topics.offset_map import Runs
from topics.records import Length, Tier, Work
from topics.settings import Settings

_TIMEOUT_S = 10.0
_READ_S = 0.5
_CHUNK = 32
_SEEN_MAX = 50_000
"""Looked-at offsets remembered per partition; one that is forgotten is looked at again, and its mark shows it."""
_MEAN_STEP = 0.05

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Span:
    """The unfinished part of a partition: from `first` to before `end`, less the finished runs in between."""

    lane: Lane
    place: Place
    first: int
    end: int
    finished: Runs

    def waiting(self, until: int | None = None) -> int:
        """Unfinished records before this offset, or all."""
        end = self.end if until is None else until
        done = sum(max(0, min(last + 1, end) - max(first, self.first)) for first, last in self.finished)
        return max(0, end - self.first - done)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record that waits on a lane, with its bytes as they lie there."""

    work: Work
    value: bytes
    appended_s: float
    span: Span
    offset: int


class Lanes:
    """Reads one pool's lanes; remembers which records were looked at, and mean costs.  For one thread at a time."""

    def __init__(self, settings: Settings, pool: str) -> None:
        """Open a reader that shares the pool's group id only to read its committed offsets."""
        self._reader: Consumer = clients.onlooker(settings, catalog.gpu_group(settings, pool), fetch_wait_max_ms=20)
        self._lanes = {
            (catalog.lane(settings, pool, tier, length), partition): Lane(tier, length)
            for tier in Tier
            for length in Length
            for partition in range(settings.pools[pool].lane_partitions)
        }
        self._seen: dict[Place, set[int]] = {}
        self.mean_units: dict[Length, float] = {}
        """Of records read; absent until one was."""

    def spans(self) -> list[Span]:
        """Partitions with unfinished records.  Raises KafkaException."""
        places = list(self._lanes)
        committed = _by_place(self._reader.committed([TopicPartition(*place) for place in places], timeout=_TIMEOUT_S))
        starts, ends = (
            _by_place(
                self._reader.offsets_for_times([TopicPartition(*place, at) for place in places], timeout=_TIMEOUT_S)
            )
            for at in (OFFSET_BEGINNING, OFFSET_END)
        )
        found = []
        for place, lane in self._lanes.items():
            done = committed[place]
            first = max(done.offset, starts[place].offset, 0)
            if first < ends[place].offset:
                found.append(Span(lane, place, first, ends[place].offset, _finished(done)))
            self._seen[place] = {offset for offset in self._seen.get(place, ()) if offset >= first}
        return found

    def late_ends(self, spans: Sequence[Span], cutoffs_s: Mapping[Tier, float]) -> dict[Place, int]:
        """The offset before which a span's records were appended before its tier's time.  Raises KafkaException."""
        by_place = {span.place: span for span in spans}
        times = [clients.at(*span.place, cutoffs_s[span.lane.tier]) for span in spans]
        ends = {}
        for young in tail.at_times(self._reader, times, _TIMEOUT_S) if times else ():
            span = by_place[(young.topic, young.partition)]
            end = young.offset if young.offset >= 0 else span.end
            if span.first < end:
                ends[span.place] = end
        return ends

    def oldest_first(self, parts: Sequence[tuple[Span, int, int]]) -> Iterator[Waiting]:
        """Records between the offsets (start, end) of these spans that nobody looked at, in order of their times.

        Reads as far as the caller takes.
        """
        return heapq.merge(*(self._records(*part) for part in parts), key=lambda found: found.appended_s)

    def looked_at(self, records: Sequence[Waiting]) -> None:
        """Do not give these again."""
        for record in records:
            self._pass(record.span.place, record.offset)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def _records(self, span: Span, start: int, end: int) -> Iterator[Waiting]:
        finished = {offset for first, last in span.finished for offset in range(max(first, start), min(last + 1, end))}
        passed = self._seen.get(span.place, set()) | finished
        position = _next(start, passed)
        while position < end:
            messages = self._read(span.place, position, min(_CHUNK, end - position))
            if not messages:
                return  # only markers and compacted records are left
            for message in messages:
                offset = message.offset() or 0
                if offset < end and offset not in passed and (record := self._waiting(span, message)):
                    yield record
            position = _next(1 + max(message.offset() or 0 for message in messages), passed)

    def _read(self, place: Place, position: int, count: int) -> list[Message]:
        self._reader.assign([TopicPartition(*place, position)])
        try:
            return self._reader.consume(count, timeout=_READ_S)
        finally:
            self._reader.unassign()

    def _waiting(self, span: Span, message: Message) -> Waiting | None:
        value, offset = message.value(), message.offset() or 0
        if message.error() is not None:
            return None
        try:
            work = codec.decode_work(value or b"")
        except codec.UNREADABLE:
            self._pass(span.place, offset)  # the consumers dead-letter it when they meet it
            return None
        units, length = work.price.cost_units, span.lane.length
        mean = self.mean_units.get(length, units)
        self.mean_units[length] = mean + _MEAN_STEP * (units - mean)
        return Waiting(work, value or b"", clients.written_s(message), span, offset)

    def _pass(self, place: Place, offset: int) -> None:
        seen = self._seen.setdefault(place, set())
        seen.add(offset)
        if len(seen) > _SEEN_MAX:
            seen.discard(min(seen))


def _next(offset: int, passed: set[int]) -> int:
    """The first offset from here that was not passed."""
    while offset in passed:
        offset += 1
    return offset


def _by_place(answer: Sequence[TopicPartition]) -> dict[Place, TopicPartition]:
    for tp in answer:
        if tp.error is not None:
            raise KafkaException(tp.error)
    return {(tp.topic, tp.partition): tp for tp in answer}


def _finished(done: TopicPartition) -> Runs:
    try:
        return offset_map.decode(done.offset, done.metadata)
    except offset_map.ForeignMetadata:
        return []  # written by someone else: everything beyond the offset counts as unfinished
