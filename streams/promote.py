"""Promotion: work that waits longer than the threshold gets a copy in the aged tier; its class stays what it was.

Reads a lane only between what the consumers have committed and what is old enough, so it costs nothing while nothing
waits: a delay line that skips what was served in time.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]
from structlog import get_logger

from streams import metrics
from streams.apply import Writer
from streams.budgets import Budgets
from streams.outbox import Outbox
from streams.settings import StreamsSettings
from topics import catalog, clients, codec
from topics.clock import Clock
from topics.records import Length, Tier, Work

_log = get_logger()
_TIMEOUT_S = 10.0
_READ_S = 0.5
_BATCH = 200


@dataclass(frozen=True, slots=True)
class Old:
    """Work old enough to be promoted, with its bytes as they lie on the lane."""

    work: Work
    value: bytes


class Promoter:
    """One pool's promotions.  Runs in one process at a time; a second would do no harm, since marks are atomic."""

    def __init__(
        self, settings: StreamsSettings, pool: str, clock: Clock, budgets: Budgets, writer: Writer, outbox: Outbox
    ) -> None:
        """Open a reader that shares the pool's group id only to read its committed offsets; it never joins."""
        self._settings, self._pool, self._clock = settings, pool, clock
        self._budgets, self._writer, self._outbox = budgets, writer, outbox
        self._reader: Consumer = clients.consumer(settings, catalog.gpu_group(settings, pool), fetch_wait_max_ms=20)
        self._admin = clients.admin(settings)
        self._lanes = [
            TopicPartition(topic, partition)
            for topic in catalog.lanes(settings, pool)
            for partition in range(settings.pools[pool].lane_partitions)
        ]
        self._aged = {catalog.lane(settings, pool, Tier.AGED, length) for length in Length}
        self._cursor: dict[tuple[str, int], int] = {}

    async def step(self) -> int:
        """Promote what has become old since the last step; the number of copies made."""
        old = await asyncio.to_thread(self._read_old)
        promoted = 0
        for start in range(0, len(old), _BATCH):
            promoted += await self._promote(old[start : start + _BATCH])
        return promoted

    async def _promote(self, old: Sequence[Old]) -> int:
        fresh = await self._budgets.promotable([item.work.request.id for item in old])
        chosen = [item for item, is_fresh in zip(old, fresh, strict=True) if is_fresh]
        records = [self._writer.on_lane(o.work, o.value, Tier.AGED, o.work.price.length) for o in chosen]
        records += [self._writer.promotion(item.work) for item in chosen]
        await self._outbox.deliver(records)
        metrics.PROMOTED.labels(self._pool).inc(len(chosen))
        return len(chosen)

    def _read_old(self) -> list[Old]:
        """Blocking: read the lanes from where we left off up to the threshold.  Nothing when a reading fails."""
        try:
            backlog = self._backlog()
            room = self._settings.streams.aged_backlog_records - sum(
                high - start for (topic, _), (start, high) in backlog.items() if topic in self._aged
            )
            waiting = {tp: span for tp, span in backlog.items() if tp[0] not in self._aged}
            old: list[Old] = []
            for topic, partition, start, end in self._old_spans(waiting):
                old += self._read(TopicPartition(topic, partition, start), min(end, start + room - len(old)))
        except KafkaException as error:
            _log.warning("promotion_skipped", pool=self._pool, error=error.args[0].str())
            return []
        else:
            return old

    def _backlog(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Partitions with uncommitted records: where they begin (or where we left off) and end."""
        committed = self._reader.committed(self._lanes, timeout=_TIMEOUT_S)
        latest: Any = dict.fromkeys(self._lanes, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        ends = {
            (tp.topic, tp.partition): future.result().offset
            for tp, future in self._admin.list_offsets(latest, request_timeout=_TIMEOUT_S).items()
        }
        found = {}
        for done in committed:
            key = (done.topic, done.partition)
            start = max(self._cursor.get(key, 0), done.offset, 0)
            if start < ends[key]:
                found[key] = (start, ends[key])
        return found

    def _old_spans(self, backlog: Mapping[tuple[str, int], tuple[int, int]]) -> Iterator[tuple[str, int, int, int]]:
        """(topic, partition, start, end) of what is past the threshold and not yet looked at."""
        if not backlog:
            return
        cutoff_ms = int((self._clock.wall_s() - self._settings.streams.aged_after_s) * 1000)
        times = [TopicPartition(topic, partition, cutoff_ms) for topic, partition in backlog]
        for young in self._reader.offsets_for_times(times, timeout=_TIMEOUT_S):
            start, high = backlog[(young.topic, young.partition)]
            end = young.offset if young.offset >= 0 else high
            if start < end:
                yield young.topic, young.partition, start, end

    def _read(self, start: TopicPartition, end: int) -> list[Old]:
        found: list[Old] = []
        position = start.offset
        if position >= end:
            return found
        self._reader.assign([start])
        while position < end:
            messages = self._reader.consume(min(_BATCH, end - position), timeout=_READ_S)
            if not messages:
                break
            found += [old for message in messages if (old := _old(message)) is not None]
            position = 1 + max(message.offset() or 0 for message in messages)
        self._reader.unassign()
        self._cursor[(start.topic, start.partition)] = position
        return found

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


def _old(message: Message) -> Old | None:
    value = message.value()
    if message.error() is not None or value is None:
        return None
    try:
        return Old(codec.decode_work(value), value)
    except ValueError:
        return None  # the consumers dead-letter it when they meet it
