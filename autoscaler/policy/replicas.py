"""Replicas: how many consumers a pool should have now.  Pure; time is an argument."""

import math
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why the count is what it is: the decision's field and the metric's label."""

    STEADY = "steady"
    SCALE_UP = "scale_up"
    SCALE_DOWN = "scale_down"
    OUT_OF_BOUNDS = "out_of_bounds"
    UP_PENDING = "up_pending"
    DOWN_PENDING = "down_pending"
    COOLDOWN = "cooldown"
    AT_MAX = "at_max"
    AT_PARTITIONS = "at_partitions"
    LAG_UNAVAILABLE = "lag_unavailable"


QUIET = frozenset({Reason.STEADY, Reason.UP_PENDING, Reason.DOWN_PENDING})
"""Reasons that are nobody's news: the count is right, or a want has not lasted yet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be done with a pool.  Invariant: min_replicas <= most."""

    min_replicas: int
    max_replicas: int
    partitions: int
    target_drain_s: float
    up_after_s: float
    down_after_s: float
    cooldown_s: float
    tolerance_replicas: float
    step_up_replicas: int
    step_down_replicas: int

    @property
    def most(self) -> int:
        """A consumer beyond the partition count would get no work."""
        return min(self.max_replicas, self.partitions)


@dataclass(frozen=True, slots=True)
class Load:
    """A complete reading of a pool.  `waiting_units` leaves out what runs already: no new replica can help it."""

    lag_records: int
    waiting_units: float
    arrival_units_per_s: float
    replica_units_per_s: float  # > 0


@dataclass(frozen=True, slots=True)
class Want:
    """What one reading asked for.  Invariant: to_grow <= to_shrink, the dead band lies between them."""

    at_s: float
    to_grow: int
    to_shrink: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What the next decision must know of the last ones.  `wants` reaches back as far as the longer window."""

    wants: tuple[Want, ...] = ()
    changed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The replicas to have now and why; `ideal_replicas` is the unrounded demand, absent when the load is unknown."""

    replicas: int
    reason: Reason
    ideal_replicas: float | None
    memory: Memory


def decide(load: Load | None, current: int, memory: Memory, limits: Limits, now_s: float) -> Decision:
    """Serve what arrives and drain what waits within the target; hold when the load is unknown.

    Bounds hold always.  A want must last for its whole window; a missing reading starts the windows anew.
    """
    bounded = max(limits.min_replicas, min(current, limits.most))
    if load is None:
        memory = Memory(changed_s=memory.changed_s)
        return _to(bounded, Reason.LAG_UNAVAILABLE, None, memory, now_s)
    ideal = _ideal(load, limits)
    memory = _remember(_want(ideal, load, limits, now_s), memory, limits)
    if bounded != current:
        return _to(bounded, Reason.OUT_OF_BOUNDS, ideal, memory, now_s)
    grow = min(want.to_grow for want in _within(memory, limits.up_after_s, now_s))
    shrink = max(want.to_shrink for want in _within(memory, limits.down_after_s, now_s))
    latest, oldest_s = memory.wants[-1], memory.wants[0].at_s
    if latest.to_grow > current:
        lasted = now_s - oldest_s >= limits.up_after_s and grow > current
        return _grow(grow if lasted else None, current, ideal, memory, limits, now_s)
    if latest.to_shrink < current and current > limits.min_replicas:
        lasted = now_s - oldest_s >= limits.down_after_s and shrink < current
        return _shrink(shrink if lasted else None, current, ideal, memory, limits, now_s)
    return _to(current, Reason.STEADY, ideal, memory, now_s)


def is_news(last: Decision | None, made: Decision, current: int) -> bool:
    """Tell whether a decision changes the count, or begins or ends a state in which the count is held back."""
    if made.replicas != current:
        return True
    before = Reason.STEADY if last is None else last.reason
    changes = (Reason.SCALE_UP, Reason.SCALE_DOWN, Reason.OUT_OF_BOUNDS)
    quiet_before, quiet_now = before in QUIET or before in changes, made.reason in QUIET
    return not (quiet_before and quiet_now) and before is not made.reason


def _ideal(load: Load, limits: Limits) -> float:
    drain_units_per_s = load.waiting_units / limits.target_drain_s
    return (load.arrival_units_per_s + drain_units_per_s) / load.replica_units_per_s


def _want(ideal: float, load: Load, limits: Limits, now_s: float) -> Want:
    """Round with a dead band; only an empty and quiet pool may want nobody."""
    busy = load.lag_records > 0
    to_grow = max(math.ceil(ideal - limits.tolerance_replicas), 1 if busy else 0)
    idle = not busy and ideal < limits.tolerance_replicas
    to_shrink = 0 if idle else max(1, math.ceil(ideal + limits.tolerance_replicas))
    return Want(now_s, to_grow, to_shrink)


def _remember(want: Want, memory: Memory, limits: Limits) -> Memory:
    """Add a want and forget those no window reaches; the one just beyond stays, to show that a window is full."""
    horizon_s = want.at_s - max(limits.up_after_s, limits.down_after_s)
    wants = [*memory.wants, want]
    first = max((i for i, past in enumerate(wants) if past.at_s <= horizon_s), default=0)
    return Memory(tuple(wants[first:]), memory.changed_s)


def _within(memory: Memory, window_s: float, now_s: float) -> list[Want]:
    return [want for want in memory.wants if now_s - want.at_s <= window_s]


def _grow(wanted: int | None, current: int, ideal: float, memory: Memory, limits: Limits, now_s: float) -> Decision:
    if current >= limits.most:
        at = Reason.AT_MAX if limits.max_replicas <= limits.partitions else Reason.AT_PARTITIONS
        return _to(current, at, ideal, memory, now_s)
    if wanted is None:
        return _to(current, Reason.UP_PENDING, ideal, memory, now_s)
    if _is_cooling(memory, limits, now_s):
        return _to(current, Reason.COOLDOWN, ideal, memory, now_s)
    replicas = min(wanted, current + limits.step_up_replicas, limits.most)
    return _to(replicas, Reason.SCALE_UP, ideal, memory, now_s)


def _shrink(wanted: int | None, current: int, ideal: float, memory: Memory, limits: Limits, now_s: float) -> Decision:
    if wanted is None:
        return _to(current, Reason.DOWN_PENDING, ideal, memory, now_s)
    if _is_cooling(memory, limits, now_s):
        return _to(current, Reason.COOLDOWN, ideal, memory, now_s)
    replicas = max(wanted, current - limits.step_down_replicas, limits.min_replicas)
    return _to(replicas, Reason.SCALE_DOWN, ideal, memory, now_s)


def _is_cooling(memory: Memory, limits: Limits, now_s: float) -> bool:
    return memory.changed_s is not None and now_s - memory.changed_s < limits.cooldown_s


def _to(replicas: int, reason: Reason, ideal: float | None, memory: Memory, now_s: float) -> Decision:
    if reason in {Reason.SCALE_UP, Reason.SCALE_DOWN}:
        memory = Memory(memory.wants, now_s)
    return Decision(replicas, reason, ideal, memory)
