"""Brings the budgets back when Redis lost them, from what each micro-batch wrote to the topic `balances`."""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition
from redis.exceptions import RedisError
from structlog import get_logger

from streams import metrics
from streams.budgets import Budgets, BudgetsUnavailable
from streams.limits import LiveLimits
from streams.settings import StreamsSettings
from topics import clients, codec, keys, tail
from topics.clock import Clock
from topics.notes import Balances
from topics.records import Priority
from topics.settings import Settings

_log = get_logger()
_LOCK_S = 5.0
"""Too small: two workers read the same.  Too large: if the one that reads dies, admission waits for as long."""
_READ_LIMIT_S = 30.0
_SKEW_S = 5.0
_LEVELS = frozenset({"global", "pool", "tenant"})
"""Of which a bucket can have any name."""

Levels = dict[str, tuple[float, float]]
"""By bucket: units, and the server's time at which it held them."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the topic told."""

    levels: Levels
    records: int


class Rebuild:
    """The worker's only task that looks after a ledger that is away or lost.

    Bound: a rebuilt level differs from the lost one by at most the open reservations of those batches whose record had
    not reached the log when it was read; none of them was acknowledged by then.  A level may be older than the lost one
    by up to `_SKEW_S` where the server's clock was put back, and by as long as a worker stood still with its record if
    that was longer.  A bucket that none of the last `degrade.rebuild_records` batches touched, nor any in the time that
    the slowest bucket takes to fill, comes back as a new one: it starts at zero, and what it still owed is forgiven.
    """

    def __init__(self, settings: StreamsSettings, clock: Clock, budgets: Budgets, limits: LiveLimits) -> None:
        """One for each worker; the workers agree by a lock in Redis which of them reads."""
        self._settings, self._clock, self._budgets, self._limits = settings, clock, budgets, limits
        self._client = clients.redis_async(settings)
        self._lock = keys.of(settings, settings.streams.shadow).rebuild()

    async def run(self) -> None:
        """Ask Redis every `degrade.probe_s`, which opens and closes the breaker; restore what it lost."""
        while True:
            await self.step()
            await asyncio.sleep(self._settings.streams.degrade.probe_s)

    async def step(self) -> None:
        """Ask once; an outage is the breaker's to report."""
        with contextlib.suppress(BudgetsUnavailable):
            await self._budgets.ping()
            if self._budgets.is_lost:
                metrics.BUDGETS_LOST.set(1)
                await self._restore_alone()
            if not self._budgets.is_lost:
                metrics.BUDGETS_LOST.set(0)

    async def _restore_alone(self) -> None:
        """Restore unless another worker is at it; two at once would only read twice."""
        try:
            if await asyncio.shield(self._client.set(self._lock, "1", nx=True, px=int(_LOCK_S * 1000))):
                try:
                    await self._restore()
                finally:
                    await asyncio.shield(self._client.delete(self._lock))
        except RedisError as error:
            _log.warning("rebuild_lock_lost", error=str(error), doing="tries again")

    async def _restore(self) -> None:
        started_s = self._clock.mono_s()
        records = self._settings.streams.degrade.rebuild_records
        since_s = self._clock.wall_s() - self._limits.slowest_fill_s()
        try:
            found = await asyncio.to_thread(read, self._settings, since_s, records)
        except KafkaException as error:
            metrics.REBUILDS.labels("failed").inc()
            _log.warning("balances_not_read", error=error.args[0].str(), doing="tries again; admission does without")
            return
        await self._budgets.restore(found.levels)
        metrics.REBUILDS.labels("restored").inc()
        took_s = round(self._clock.mono_s() - started_s, 3)
        _log.info("budgets_restored", buckets=len(found.levels), records=found.records, took_s=took_s)


def read(settings: Settings, since_s: float, records: int) -> Found:
    """The newest level of each bucket in the log, up to its end as it is now.

    From `since_s` (less some clock skew), or from as many `records` before the end, whichever is earlier.  Blocking.
    Raises KafkaException when the broker does not answer: unknown is not "nothing spent".
    """
    levels: Levels = {}
    count = 0
    for balances in _records(settings, settings.topic("balances"), since_s - _SKEW_S, records):
        count += 1
        keep_newest(levels, balances)
    return Found(levels, count)


def keep_newest(levels: Levels, balances: Balances) -> None:
    """Take in a record of the log; what is no level of a bucket that there can be is passed over.

    Workers write side by side, so that a record may lie a little behind a newer one.  One that is older by more was
    written after the server's clock had been put back, or by another server: then the later in the log counts.
    """
    for bucket, units in balances.levels.items():
        known = levels.get(bucket)
        is_older = known is not None and known[1] - _SKEW_S <= balances.at_s < known[1]
        if not is_older and math.isfinite(units) and _is_bucket(bucket):
            levels[bucket] = (units, balances.at_s)


def _is_bucket(name: str) -> bool:
    level, _, owner = name.partition(":")
    return bool(owner) and (level in _LEVELS or (level == "class" and owner in set(Priority)))


def _records(settings: Settings, topic: str, since_s: float, records: int) -> Iterator[Balances]:
    with contextlib.closing(clients.reader(settings)) as reader:
        starts = _starts(reader, topic, since_s, records)
        for message in tail.until_ends(reader, starts, _READ_LIMIT_S):
            with contextlib.suppress(*codec.UNREADABLE):  # a foreign record says nothing about budgets
                yield codec.decode_balances(message.value() or b"")


def _starts(reader: Consumer, topic: str, since_s: float, records: int) -> list[TopicPartition]:
    """Where to begin in each partition that holds anything."""
    asked = [clients.at(topic, number, since_s) for number in tail.partitions(reader, topic, _READ_LIMIT_S)]
    starts = []
    for found in tail.at_times(reader, asked, _READ_LIMIT_S):
        first, end = tail.watermarks(reader, TopicPartition(topic, found.partition), _READ_LIMIT_S)
        start = max(first, min(end - records, found.offset if found.offset >= 0 else end))
        if start < end:
            starts.append(TopicPartition(topic, found.partition, start))
    return starts
