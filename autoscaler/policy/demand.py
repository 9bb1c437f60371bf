"""Demand: how many replicas the work of a pool needs, now and once what is ordered now can serve.  Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Waits = tuple[float, ...]
"""Cost that waits on the lane partitions of one number, by tier in the order of `Tier`."""


@dataclass(frozen=True, slots=True)
class Load:
    """A complete reading of a pool.  `waits` leaves out what runs already: no new replica can help it."""

    lag_records: int
    waits: tuple[Waits, ...]
    """By partition number: one consumer at most serves it.  What waits before the lanes is spread over all."""
    arrival_units_per_s: float
    replica_units_per_s: float  # > 0
    forecast_units_per_s: float | None = None
    """Mean arrival of the next cold start; None while too little was seen."""
    ready: int | None = None
    """Consumers that serve; None without telemetry."""
    running_units: float | None = None
    """Cost in engines; None without telemetry."""
    held_units: float | None = None
    """The part of `waits` that waits before the lanes for room on them; None while that cannot be read."""
    oldest_age_s: float = 0.0
    """Time since the oldest unfinished record was put on its lane."""
    is_moving: bool = False
    """Partitions changed their owner since the last reading."""

    @property
    def waiting_units(self) -> float:
        """Cost of all that waits."""
        return sum(map(sum, self.waits))

    @property
    def coming_units_per_s(self) -> float:
        """What is expected to arrive: as much as lately, or more."""
        return max(self.arrival_units_per_s, self.forecast_units_per_s or 0.0)


def present(load: Load, drain_s: Sequence[float]) -> float:
    """Replicas that serve what arrives and drain what waits within the targets, by tier, if they were ready now."""
    return load.arrival_units_per_s / load.replica_units_per_s + sum(_draining(load, load.waits, drain_s))


def soon(load: Load, drain_s: Sequence[float], cold_start_s: float, ordered: int) -> float:
    """The same for the moment at which a replica that is ordered now begins to serve, `cold_start_s` from now.

    Until then those that are ready serve, and those that are `ordered` and not ready come one after the other.
    Without telemetry nothing can be foreseen, and what waits now counts.
    """
    arriving = load.coming_units_per_s / load.replica_units_per_s
    if load.ready is None:
        return arriving + sum(_draining(load, load.waits, drain_s))
    serving = load.ready + max(0, ordered - load.ready) / 2
    forecast = load.arrival_units_per_s if load.forecast_units_per_s is None else load.forecast_units_per_s
    growth_units = (forecast - serving * load.replica_units_per_s) * cold_start_s
    return arriving + sum(_draining(load, _after(load, growth_units, drain_s), drain_s))


def fewest(load: Load, drain_s: Sequence[float], wanted: int, ordered: int) -> int:
    """As few of those `ordered` as are `wanted` (> 0), but so many that the partitions of who goes overload nobody.

    Whoever stays may get the fullest partitions, as many as an even assignment gives one, and an even part of what
    arrives.
    """
    needs = sorted((min(1.0, need) for need in _needs(load, load.waits, drain_s)), reverse=True)
    arriving = load.arrival_units_per_s / load.replica_units_per_s
    for replicas in range(wanted, ordered):
        owned = math.ceil(len(needs) / replicas)
        is_as_now = owned == math.ceil(len(needs) / ordered)
        if is_as_now or arriving / replicas + sum(needs[:owned]) <= 1:
            return replicas
    return max(wanted, ordered)


def hot_partitions(load: Load, drain_s: Sequence[float]) -> int:
    """Partitions on which more waits than one consumer can drain in time, however many others there are."""
    return sum(need > 1 for need in _needs(load, load.waits, drain_s))


def unbound(load: Load, drain_s: Sequence[float]) -> float:
    """What `present` would be if a partition could be served by several."""
    return load.arrival_units_per_s / load.replica_units_per_s + sum(_needs(load, load.waits, drain_s))


def _draining(load: Load, waits: Sequence[Waits], drain_s: Sequence[float]) -> list[float]:
    return [min(1.0, need) for need in _needs(load, waits, drain_s)]


def _needs(load: Load, waits: Sequence[Waits], drain_s: Sequence[float]) -> list[float]:
    """By partition, the consumers that meet every tier's target: what is due by then, over the time until then."""
    return [
        max(
            sum(units for units, other_s in zip(by_tier, drain_s, strict=True) if other_s <= due_s) / due_s
            for due_s in drain_s
        )
        / load.replica_units_per_s
        for by_tier in waits
    ]


def _after(load: Load, growth_units: float, drain_s: Sequence[float]) -> list[Waits]:
    """What will wait: what is there shrinks evenly; what is not there yet is spread evenly, and the most urgent."""
    waiting_units = load.waiting_units
    if growth_units <= 0:
        ratio = max(0.0, 1 + growth_units / waiting_units) if waiting_units else 0.0
        return [tuple(units * ratio for units in by_tier) for by_tier in load.waits]
    urgent, each_units = drain_s.index(min(drain_s)), growth_units / max(1, len(load.waits))
    return [
        tuple(units + each_units * (number == urgent) for number, units in enumerate(by_tier)) for by_tier in load.waits
    ]
