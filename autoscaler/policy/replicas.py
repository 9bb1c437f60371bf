"""Replicas: how many consumers a pool should have now.  Pure; time is an argument."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from autoscaler.policy import demand
from autoscaler.policy.demand import Load


class Reason(StrEnum):
    """Why the count is what it is: the decision's field and the metric's label."""

    STEADY = "steady"
    FIRST_RECORD = "first_record"
    SCALE_UP = "scale_up"
    SCALE_DOWN = "scale_down"
    OUT_OF_BOUNDS = "out_of_bounds"
    UP_PENDING = "up_pending"
    DOWN_PENDING = "down_pending"
    IDLE_PENDING = "idle_pending"
    COOLDOWN = "cooldown"
    MOVING = "moving"
    AT_MAX = "at_max"
    AT_PARTITIONS = "at_partitions"
    HOT_PARTITION = "hot_partition"
    AT_QUOTA = "at_quota"
    LAG_UNAVAILABLE = "lag_unavailable"


QUIET = frozenset({Reason.STEADY, Reason.UP_PENDING, Reason.DOWN_PENDING, Reason.IDLE_PENDING})
"""Reasons that are nobody's news: the count is right, or a want has not lasted yet."""


CHANGES = frozenset({Reason.FIRST_RECORD, Reason.SCALE_UP, Reason.SCALE_DOWN})
"""Reasons for which the pool has another count from now on; windows and cool-downs begin anew."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be done with a pool.  Invariant: min_replicas <= most."""

    min_replicas: int
    max_replicas: int
    partitions: int
    drain_s: tuple[float, ...]
    """Time in which what waits should be gone, by tier in the order of `Tier`."""
    cold_start_s: float
    up_after_s: float
    down_after_s: float
    idle_after_s: float
    cooldown_s: float
    tolerance_replicas: float
    step_up_replicas: int
    step_down_replicas: int

    @property
    def most(self) -> int:
        """A consumer beyond the partition count would get no work."""
        return min(self.max_replicas, self.partitions)


@dataclass(frozen=True, slots=True)
class Want:
    """What one reading asked for.  Invariant: to_grow <= to_shrink, the dead band lies between them."""

    at_s: float
    to_grow: int
    to_shrink: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What the next decision must know of the last ones.  `wants` reaches back as far as the longest window."""

    wants: tuple[Want, ...] = ()
    changed_s: float | None = None
    """When the count was changed last."""
    moved_s: float | None = None
    """When partitions were last seen to change their owner."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The replicas to have now and why.  Demand is unrounded, and absent when the load is unknown."""

    replicas: int
    reason: Reason
    demand: "Demand | None"
    memory: Memory


@dataclass(frozen=True, slots=True)
class Demand:
    """Replicas that are needed: to grow by what will be, since growth takes effect then; to shrink also by what is."""

    now: float
    soon: float
    unbound: float
    """`now`, if a partition could be served by several."""
    hot_partitions: int
    """On which more waits than the one consumer that may serve them can drain in time."""


def decide(load: Load | None, current: int, memory: Memory, limits: Limits, now_s: float) -> Decision:
    """Serve what arrives and drain what waits within the targets; hold when the load is unknown.

    Bounds hold always.  A want must last for its whole window; a missing reading starts the windows anew.
    """
    bounded = max(limits.min_replicas, min(current, limits.most))
    if load is None:
        memory = Memory(changed_s=memory.changed_s, moved_s=memory.moved_s)
        return Decision(bounded, Reason.LAG_UNAVAILABLE, None, memory)
    needed = _demand(load, current, limits)
    memory = _remember(_want(needed, load, current, limits, now_s), load, memory, limits)
    pool = _Round(current, needed, memory, limits, now_s)
    if bounded != current:
        return pool.hold(Reason.OUT_OF_BOUNDS, bounded)
    latest = memory.wants[-1]
    if latest.to_grow > current:
        return _first(pool) if current == 0 else _grow(pool)
    if latest.to_shrink < current and current > limits.min_replicas:
        return _shrink(pool)
    unmet = math.ceil(needed.unbound - _band(needed.unbound, limits)) > current
    is_hot = needed.hot_partitions > 0 and unmet and current < limits.most
    return pool.hold(Reason.HOT_PARTITION if is_hot else Reason.STEADY)


def within_quota(made: Decision, current: int, memory: Memory, granted: int) -> Decision:
    """A decision when the pool may have no more than `granted`: less than it has only if others go before it."""
    if made.replicas <= granted:
        return made
    changed_s = made.memory.changed_s if granted != current else memory.changed_s
    return replace(made, replicas=granted, reason=Reason.AT_QUOTA, memory=replace(made.memory, changed_s=changed_s))


def is_news(last: Decision | None, made: Decision, current: int) -> bool:
    """Tell whether a decision changes the count, or begins or ends a state in which the count is held back."""
    if made.replicas != current:
        return True
    before = Reason.STEADY if last is None else last.reason
    settled = CHANGES | {Reason.OUT_OF_BOUNDS} | QUIET
    return not (before in settled and made.reason in QUIET) and before is not made.reason


@dataclass(frozen=True, slots=True)
class _Round:
    """What the steps of one decision share.  Invariant: `memory.wants` ends with that of this reading."""

    current: int
    needed: Demand
    memory: Memory
    limits: Limits
    now_s: float

    def hold(self, reason: Reason, replicas: int | None = None) -> Decision:
        """Leave the count, or bring it within its bounds."""
        return Decision(self.current if replicas is None else replicas, reason, self.needed, self.memory)

    def change(self, reason: Reason, replicas: int) -> Decision:
        """Another count from now on."""
        return Decision(replicas, reason, self.needed, replace(self.memory, changed_s=self.now_s))

    def wants(self, window_s: float) -> list[Want] | None:
        """The wants of a window; None while less than a whole window is known."""
        wants = self.memory.wants
        if self.now_s - wants[0].at_s < window_s:
            return None
        return [want for want in wants if self.now_s - want.at_s <= window_s]

    def is_within(self, since_s: float | None) -> bool:
        """Whether that was less than a cool-down ago."""
        return since_s is not None and self.now_s - since_s < self.limits.cooldown_s


def _demand(load: Load, current: int, limits: Limits) -> Demand:
    return Demand(
        now=demand.present(load, limits.drain_s),
        soon=demand.soon(load, limits.drain_s, limits.cold_start_s, current),
        unbound=demand.unbound(load, limits.drain_s),
        hot_partitions=demand.hot_partitions(load, limits.drain_s),
    )


def _want(needed: Demand, load: Load, current: int, limits: Limits, now_s: float) -> Want:
    """Round with a dead band; only a pool that is known to be empty and quiet may want nobody."""
    busy = load.lag_records > 0 or load.waiting_units > 0
    most = max(needed.now, needed.soon)
    to_grow = max(math.ceil(needed.soon - _band(needed.soon, limits)), 1 if busy else 0)
    known_quiet = load.running_units == 0 and load.held_units == 0
    idle = not busy and known_quiet and most < limits.tolerance_replicas
    enough = max(1, math.ceil(most + _band(most, limits)))
    return Want(now_s, to_grow, 0 if idle else demand.fewest(load, limits.drain_s, enough, current))


def _band(replicas: float, limits: Limits) -> float:
    """The dead band around a demand: as the demand's own noise, it grows with it."""
    return limits.tolerance_replicas * max(1.0, replicas)


def _remember(want: Want, load: Load, memory: Memory, limits: Limits) -> Memory:
    """Add a want and forget those no window reaches; the one just beyond stays, to show that a window is full."""
    horizon_s = want.at_s - max(limits.up_after_s, limits.down_after_s, limits.idle_after_s)
    wants = [*memory.wants, want]
    first = max((i for i, past in enumerate(wants) if past.at_s <= horizon_s), default=0)
    return Memory(tuple(wants[first:]), memory.changed_s, want.at_s if load.is_moving else memory.moved_s)


def _first(pool: _Round) -> Decision:
    """Somebody for the first record, at once: a pool of nobody has no rebalance to wait for and no lull to fear."""
    wanted = min(pool.memory.wants[-1].to_grow, pool.limits.step_up_replicas, pool.limits.most)
    return pool.change(Reason.FIRST_RECORD, wanted)


def _grow(pool: _Round) -> Decision:
    limits = pool.limits
    if pool.current >= limits.most:
        return pool.hold(Reason.AT_MAX if limits.max_replicas <= limits.partitions else Reason.AT_PARTITIONS)
    wants = pool.wants(limits.up_after_s)
    wanted = 0 if wants is None else min(want.to_grow for want in wants)
    if wanted <= pool.current:
        return pool.hold(Reason.UP_PENDING)
    if pool.is_within(pool.memory.changed_s):
        return pool.hold(Reason.COOLDOWN)
    return pool.change(Reason.SCALE_UP, min(wanted, pool.current + limits.step_up_replicas, limits.most))


def _shrink(pool: _Round) -> Decision:
    """Fewer, once that was wanted for its whole window; nobody, once the pool was idle for all of a longer one."""
    limits = pool.limits
    wants = pool.wants(limits.down_after_s)
    wanted = pool.current if wants is None else max(want.to_shrink for want in wants)
    if wanted >= pool.current:
        return pool.hold(Reason.DOWN_PENDING)
    if pool.is_within(pool.memory.changed_s):
        return pool.hold(Reason.COOLDOWN)
    if pool.is_within(pool.memory.moved_s):
        return pool.hold(Reason.MOVING)
    idle = pool.wants(limits.idle_after_s)
    is_idle = idle is not None and all(want.to_shrink == 0 for want in idle)
    replicas = max(wanted, pool.current - limits.step_down_replicas, limits.min_replicas, 0 if is_idle else 1)
    if replicas >= pool.current:
        return pool.hold(Reason.IDLE_PENDING)
    return pool.change(Reason.SCALE_DOWN, replicas)
