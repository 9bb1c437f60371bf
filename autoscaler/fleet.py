"""Who serves a pool, and how fast, by the telemetry that consumers send."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from autoscaler.following import Follower, Source
from autoscaler.policy import rate
from topics import codec
from topics.clock import Clock
from topics.settings import Settings
from topics.telemetry import Telemetry

LOOK_BACK_S = 30.0
"""How old telemetry is read at the start."""
FORGET_S = 60.0
"""A consumer that was silent for this long is forgotten."""
MAX_CONSUMERS = 10_000


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


class FleetReader(Follower):
    """Follows the telemetry topic."""

    def __init__(self, settings: Settings, clock: Clock, timeout_s: float, stale_s: float) -> None:
        super().__init__(settings, clock, timeout_s, Source("telemetry", 1, LOOK_BACK_S, queued_kib=4096))
        self._stale_s = stale_s
        self._seen: dict[str, _Seen] = {}
        self._owners: dict[str, _Owners] = {}

    def read(self) -> Mapping[str, Fleet]:
        """Take in what was sent since the last call, and sum up by pool.  Does not wait for more.

        Raises LagUnavailable until the topic was read to its end for the first time, and while it may not be read.
        """
        self.begin()
        rates: dict[str, list[float]] = {}
        for value in self.values():
            self._take(value, rates)
        return self._sum_up(rates)

    def reports(self) -> list[Telemetry]:
        """The last report of each consumer that spoke lately, as of the last call of `read`."""
        return self._fresh(self._clock.wall_s())

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
