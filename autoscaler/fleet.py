"""Who serves a pool, and how fast, by the telemetry that consumers send."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import msgspec
from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from autoscaler.policy import rate
from topics import clients, codec, tail
from topics.clock import Clock
from topics.errors import LagUnavailable
from topics.settings import Settings
from topics.telemetry import Telemetry

LOOK_BACK_S = 30.0
"""How old telemetry is read at the start."""
FORGET_S = 60.0
"""A consumer that was silent for this long is forgotten."""
MAX_CONSUMERS = 10_000
_BATCH = 1000
_MAX_BATCHES = 20


@dataclass(frozen=True, slots=True)
class Fleet:
    """The consumers of a pool that spoke lately.  `rates_units_per_s` were measured since the last summary."""

    ready: int = 0
    running_units: float = 0.0
    rates_units_per_s: tuple[float, ...] = ()
    is_moving: bool = False
    """Partitions changed their owner since the last summary."""


_Owners = dict[tuple[str, int], str]
"""Consumer by lane and partition."""


@dataclass(slots=True)
class _Seen:
    last: Telemetry
    span: rate.BusySpan | None


class FleetReader:
    """Follows the telemetry topic.  For one thread; belongs to no group, commits nothing."""

    def __init__(self, settings: Settings, clock: Clock, timeout_s: float, stale_s: float) -> None:
        self._clock, self._timeout_s, self._stale_s = clock, timeout_s, stale_s
        self._topic = settings.topic("telemetry")
        self._reader = clients.consumer(
            settings, settings.topic("rampmeter-reader"), queued_max_messages_kbytes=4096, fetch_wait_max_ms=500
        )
        self._seen: dict[str, _Seen] = {}
        self._owners: dict[str, _Owners] = {}
        self._assigned = False

    def read(self) -> Mapping[str, Fleet]:
        """Take in what was sent since the last call, and sum up by pool.  Does not wait for more.

        Raises LagUnavailable until the topic could be found for the first time.
        """
        if not self._assigned:
            self._assign()
        rates: dict[str, list[float]] = {}
        for _ in range(_MAX_BATCHES):
            messages = self._reader.consume(_BATCH, timeout=0)
            for message in messages:
                if message.error() is None and message.value() is not None:
                    self._take(message.value() or b"", rates)
            if len(messages) < _BATCH:
                break
        return self._sum_up(rates)

    def reports(self) -> list[Telemetry]:
        """The last report of each consumer that spoke lately, as of the last call of `read`."""
        return self._fresh(self._clock.wall_s())

    def close(self) -> None:
        """Leave the broker."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _assign(self) -> None:
        asked = clients.at(self._topic, 0, self._clock.wall_s() - LOOK_BACK_S)
        try:
            (start,) = tail.at_times(self._reader, [asked], self._timeout_s)
        except KafkaException as error:
            raise LagUnavailable(f"telemetry: {error.args[0].str()}") from error
        offset = start.offset if start.offset >= 0 else OFFSET_END
        self._reader.assign([TopicPartition(self._topic, 0, offset)])
        self._assigned = True

    def _take(self, value: bytes, rates: dict[str, list[float]]) -> None:
        try:
            report = codec.decode_telemetry(value)
        except codec.UNREADABLE:
            return  # another version's record; its consumer counts as silent
        seen = self._seen.get(report.consumer)
        if seen is None and len(self._seen) >= MAX_CONSUMERS:
            return
        span, sample = rate.follow(
            seen.span if seen else None, rate.Report(report.at_s, report.finished_units_total, report.queued_units)
        )
        # A clock that is ahead would have its consumer count for long after it fell silent.
        last = msgspec.structs.replace(report, at_s=min(report.at_s, self._clock.wall_s()))
        self._seen[report.consumer] = _Seen(last, span)
        if sample is not None:
            rates.setdefault(report.pool, []).append(sample)

    def _sum_up(self, rates: Mapping[str, list[float]]) -> dict[str, Fleet]:
        now_s = self._clock.wall_s()
        self._seen = {name: seen for name, seen in self._seen.items() if now_s - seen.last.at_s <= FORGET_S}
        fresh = self._fresh(now_s)
        pools = {report.pool for report in fresh} | set(rates)
        return {pool: self._fleet(pool, [r for r in fresh if r.pool == pool], rates.get(pool, [])) for pool in pools}

    def _fresh(self, now_s: float) -> list[Telemetry]:
        return [seen.last for seen in self._seen.values() if now_s - seen.last.at_s <= self._stale_s]

    def _fleet(self, pool: str, reports: list[Telemetry], rates: list[float]) -> Fleet:
        """A draining consumer's running work still counts, the consumer itself does not."""
        owners = {(lane, p): r.consumer for r in reports for lane, owned in r.lanes.items() for p in owned}
        before, self._owners[pool] = self._owners.get(pool), owners
        return Fleet(
            ready=sum(report.state == "ready" for report in reports),
            running_units=sum(report.inflight_units for report in reports if report.state != "gone"),
            rates_units_per_s=tuple(rates),
            is_moving=before is not None and before != owners,
        )
