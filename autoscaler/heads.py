"""The records at the heads of lane partitions: when they were put there, and what those behind them cost."""

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaException, Message, TopicPartition

from topics import clients, codec, tail
from topics.clock import Clock
from topics.errors import LagUnavailable
from topics.settings import Settings

Place = tuple[str, int]
"""Topic and partition."""

COST_HEADER = "rampmeter_cost"
COSTS_PER_HEAD = 32
"""Costs kept of one partition."""
FETCH_BYTES = 16_384
"""Asked of a partition at once; the broker always gives at least the first batch."""
_BATCH = 512
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Head:
    """The first record at or after the offset asked for.  `is_fresh` is False when nothing new was read for it."""

    appended_s: float
    costs_units: tuple[float, ...]
    is_fresh: bool = True


@dataclass(slots=True)
class _Found:
    """What came of one partition in one reading."""

    appended_s: float | None = None
    costs_units: list[float] = field(default_factory=list)
    at_end: bool = False


class HeadReader:
    """Reads single places of topics by manual assignment.  For one thread; belongs to no group, commits nothing."""

    def __init__(self, settings: Settings, clock: Clock, timeout_s: float) -> None:
        self._clock, self._timeout_s = clock, timeout_s
        self._reader = clients.consumer(
            settings,
            settings.topic("rampmeter-reader"),
            enable_partition_eof=True,
            fetch_wait_max_ms=20,
            fetch_error_backoff_ms=20,
            # Only the head is wanted: without these the client would read the whole queue ahead.
            queued_min_messages=1,
            max_partition_fetch_bytes=FETCH_BYTES,
            queued_max_messages_kbytes=1024,
            fetch_queue_backoff_ms=10,
        )
        self._known: dict[Place, tuple[tuple[int, int], Head]] = {}

    def read(self, wanted: Mapping[Place, tuple[int, int]]) -> dict[Place, Head]:
        """Heads by place, for places given with first and end offset; a place without any record is left out.

        Raises LagUnavailable when one could not be read in time, KafkaException when the broker refuses.
        """
        known = {place: self._known[place][1] for place, span in wanted.items() if self._is_known(place, span)}
        found = self._fetch({place: span[0] for place, span in wanted.items() if place not in known})
        heads = {place: replace(head, is_fresh=False) for place, head in known.items()} | found
        self._known = {place: (wanted[place], head) for place, head in heads.items()}
        return heads

    def close(self) -> None:
        """Leave the broker."""
        self._reader.close()

    def _is_known(self, place: Place, span: tuple[int, int]) -> bool:
        """The same head; and nothing was added, or as many costs as wanted were there before."""
        if place not in self._known:
            return False
        (first, end), head = self._known[place]
        return first == span[0] and (end == span[1] or len(head.costs_units) >= COSTS_PER_HEAD)

    def _fetch(self, offsets: Mapping[Place, int]) -> dict[Place, Head]:
        if not offsets:
            return {}
        found = {place: _Found() for place in offsets}
        deadline_s = self._clock.mono_s() + self._timeout_s
        self._reader.assign([TopicPartition(*place, offset) for place, offset in offsets.items()])
        try:
            while open_count := sum(f.appended_s is None and not f.at_end for f in found.values()):
                _sort_in(self._reader.consume(open_count, timeout=_POLL_S), found)
                if self._clock.mono_s() > deadline_s:
                    raise LagUnavailable("the records at the heads of the lanes could not be read in time")
            _sort_in(self._reader.consume(_BATCH, timeout=0), found)  # what came along: more costs
        finally:
            self._reader.unassign()
        return {
            place: Head(f.appended_s, tuple(f.costs_units)) for place, f in found.items() if f.appended_s is not None
        }


def _sort_in(messages: Iterable[Message], found: Mapping[Place, _Found]) -> None:
    for message in messages:
        error = message.error()
        place = found.get((message.topic() or "", message.partition() or 0))
        if place is None:
            continue
        if error is not None and not tail.is_end(message):
            raise KafkaException(error)
        if error is not None:
            place.at_end = True
            continue
        if place.appended_s is None:
            place.appended_s = _appended_s(message)
        if len(place.costs_units) < COSTS_PER_HEAD and (cost := cost_units(message)) is not None:
            place.costs_units.append(cost)


def _appended_s(message: Message) -> float:
    kind, timestamp_ms = message.timestamp()
    if kind == TIMESTAMP_NOT_AVAILABLE:
        raise LagUnavailable(f"records of {message.topic()} carry no timestamp")
    return float(timestamp_ms) / 1000


def cost_units(message: Message) -> float | None:
    """The record's cost by its header, else by its price; None when neither can be read."""
    headers: codec.Headers = message.headers() or ()  # type: ignore[assignment]  # the library names a wider type
    for name, value in headers:
        if name == COST_HEADER and value is not None:
            with contextlib.suppress(ValueError):
                units = float(value)
                return units if math.isfinite(units) and units >= 0 else None
    try:
        return codec.decode_work(message.value() or b"").price.cost_units
    except codec.UNREADABLE:
        return None
