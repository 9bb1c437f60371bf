"""Makes the rows of `rampmeter top` of what was read.  Pure; time is an argument."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from autoscaler.backlog import Backlog, LaneBacklog
from rampmeter.doctor.diagnosis import FORGOTTEN_S, free_kv_ratio, total
from rampmeter.draining import is_live
from rampmeter.top.snapshot import Consumer, Lane, Pool
from topics.records import Length, Role, Tier
from topics.telemetry import Telemetry

RATE_S = 10.0
"""Too small: a batch of commits is a wave.  Too large: a rate is what it was."""
GONE_S = 60.0
"""How long one that took leave is still shown."""
_Counts = Mapping[str, tuple[int, int]]
"""Appended and finished records by lane topic; of the finished only differences mean anything."""


@dataclass(slots=True)
class Pace:
    """Records that come to and leave each lane, per second of the last `RATE_S`.  Written only by its reader."""

    _past: deque[tuple[float, _Counts]] = field(default_factory=deque)

    def note(self, backlogs: Iterable[Backlog], now_s: float) -> None:
        """Take in what was read; of a lane that was not, nothing is known then."""
        lanes = [lane for backlog in backlogs for lane in backlog.lanes]
        self._past.append((now_s, {lane.topic: _counts(lane) for lane in lanes}))
        while len(self._past) > 2 and now_s - self._past[1][0] >= RATE_S:
            self._past.popleft()

    def of(self, topic: str) -> tuple[float, float] | None:
        """Arriving and leaving; None until the lane was read twice."""
        known = [(at_s, counts[topic]) for at_s, counts in self._past if topic in counts]
        if len(known) < 2 or topic not in self._past[-1][1] or known[-1][0] <= known[0][0]:
            return None
        (first_s, first), (last_s, last) = known[0], known[-1]
        took_s = last_s - first_s
        arrived, finished = (max(0, now - before) for before, now in zip(first, last, strict=True))
        return arrived / took_s, finished / took_s


def _counts(lane: LaneBacklog) -> tuple[int, int]:
    return lane.appended_records, lane.appended_records - lane.lag_records


def lanes(pool: str, backlog: Backlog | None, serves_units_per_s: float | None, pace: Pace) -> list[Lane]:
    """A row for each class of a pool, also when nothing of it could be read."""
    if backlog is None:
        return [Lane(pool, tier, length) for tier in Tier for length in Length]
    return [_lane(pool, lane, serves_units_per_s, pace.of(lane.topic)) for lane in backlog.lanes]


def _lane(pool: str, lane: LaneBacklog, serves_units_per_s: float | None, pace: tuple[float, float] | None) -> Lane:
    return Lane(
        pool=pool,
        tier=lane.tier,
        length=lane.length,
        lag_records=lane.lag_records,
        cost_units=round(lane.cost_units, 1),
        drain_s=_drain_s(lane.cost_units, serves_units_per_s),
        oldest_age_s=round(lane.oldest_age_s, 3),
        arrived_per_s=None if pace is None else round(pace[0], 3),
        finished_per_s=None if pace is None else round(pace[1], 3),
    )


def pool(name: str, backlog: Backlog | None, consumers: Sequence[Consumer] | None, pace: Pace) -> Pool:
    """A pool's row."""
    mine = None if consumers is None else [one for one in consumers if one.pool == name]

    def count(*states: str) -> int | None:
        return None if mine is None else sum(one.state in states for one in mine)

    serves = serves_units_per_s(name, consumers)
    who = Pool(name, count("ready"), count("closed"), count("draining"), count("silent"), capacity_units_per_s=serves)
    if backlog is None:
        return who
    return msgspec.structs.replace(
        who,
        lag_records=backlog.lag_records,
        cost_units=round(backlog.cost_units, 1),
        drain_s=_drain_s(backlog.cost_units, serves),
        oldest_age_s=round(backlog.oldest_age_s, 3),
        arrived_units_per_s=_arrived_units_per_s(backlog, pace),
    )


def serves_units_per_s(pool: str, consumers: Sequence[Consumer] | None) -> float | None:
    """What a pool's ready consumers serve together; None while nobody knows."""
    ready = [one for one in consumers or () if one.pool == pool and one.state == "ready"]
    return total([one.capacity_units_per_s for one in ready])


def _drain_s(cost_units: float, units_per_s: float | None) -> float | None:
    if not cost_units:
        return 0.0
    return round(cost_units / units_per_s, 3) if units_per_s else None


def _arrived_units_per_s(backlog: Backlog, pace: Pace) -> float | None:
    """None while the pace is unknown, or what came has an unknown cost."""
    arrived = 0.0
    for lane in backlog.lanes:
        found = pace.of(lane.topic)
        if found is None or (found[0] and lane.mean_units is None):
            return None
        arrived += found[0] * (lane.mean_units or 0.0)
    return round(arrived, 3)


def consumers(reports: Iterable[Telemetry], now_s: float) -> tuple[Consumer, ...]:
    """By name; who is silent for long, or took leave a while ago, is not there any more."""
    rows = [_consumer(told, now_s) for told in reports]
    kept = [one for one in rows if one.age_s <= (GONE_S if one.state == "gone" else FORGOTTEN_S)]
    return tuple(sorted(kept, key=lambda one: (one.pool, one.consumer)))


def _consumer(told: Telemetry, now_s: float) -> Consumer:
    free_kv = free_kv_ratio(told)
    return Consumer(
        consumer=told.consumer,
        pool=told.pool,
        role=told.role or Role.GENERAL,
        state=_state(told, now_s),
        age_s=round(max(0.0, now_s - told.at_s), 3),
        lanes=told.lanes,
        partitions=sum(map(len, told.lanes.values())),
        inflight_requests=told.inflight_requests,
        queued_units=round(told.queued_units, 1),
        capacity_units_per_s=told.capacity_units_per_s,
        kv_used_ratio=None if free_kv is None else round(1 - free_kv, 4),
        gpu_memory_used_ratio=told.gpu_memory_used_ratio,
        gpu_busy_ratio=told.gpu_busy_ratio,
        gpu_temperature_c=told.gpu_temperature_c,
        intake=told.intake,
    )


def _state(told: Telemetry, now_s: float) -> str:
    if told.state == "gone" or is_live(told, now_s):
        return "closed" if told.state == "ready" and told.intake else told.state
    return "silent"
