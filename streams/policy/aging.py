"""Aging: which late work gets a copy in the aged tier, and how long work of any class waits at most.  Pure.

A lane is a queue with a guaranteed part of the pool's rate; the aged tier is a second, faster door for what is late.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from topics.records import Length, Priority, Tier
from topics.settings import Pool

_LANES = len(Tier) * len(Length)


class Lane(NamedTuple):
    """One lane of the pool."""

    tier: Tier
    length: Length


class Verdict(StrEnum):
    """What becomes of late work at one look; all but `PROMOTE` leave it where it is."""

    PROMOTE = "promote"
    YOUNG = "young"
    RECORD_CAP = "record_cap"
    COST_CAP = "cost_cap"
    NOT_SOONER = "not_sooner"


@dataclass(frozen=True, slots=True)
class Late:
    """All that decides about one record; None is unknown."""

    age_s: float
    """Since it was put on its lane."""
    threshold_s: float
    lane_wait_s: float | None
    """Until its lane would serve it.  Unknown too while its owner is ill: then nobody serves it there."""
    aged_wait_s: float | None
    room_records: int
    """Copies that may still be made before the aged tier is full."""
    room_units: float | None
    """Cost that may still be promoted in the window; None when the cap does not bind, see `room_units`."""


def decide(late: Late) -> Verdict:
    """Promote what is older than its threshold, fits under both caps and would be served sooner in the aged tier."""
    if late.age_s < late.threshold_s:
        return Verdict.YOUNG
    if late.room_records <= 0:
        return Verdict.RECORD_CAP
    if late.room_units is not None and late.room_units <= 0:
        return Verdict.COST_CAP
    return Verdict.PROMOTE if worth_it(late.lane_wait_s, late.aged_wait_s) else Verdict.NOT_SOONER


def worth_it(lane_wait_s: float | None, aged_wait_s: float | None) -> bool:
    """Whether a copy would be served sooner than the original; without both estimates age alone counts."""
    return lane_wait_s is None or aged_wait_s is None or aged_wait_s < lane_wait_s


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the pool, and what was promoted after it by class."""

    at_s: float
    dispatched_units: float | None
    """Counted up since any time; None while the fleet is unknown."""
    promoted_units: Mapping[Priority, float]


def within(samples: Sequence[Sample], now_s: float, window_s: float) -> tuple[Sample, ...]:
    """The samples of the window."""
    after_s = now_s - window_s
    return tuple([s for s in samples if s.at_s > after_s])


def room_units(samples: Sequence[Sample], aged_ratio: float, *, has_idle: bool) -> float | None:
    """What may still be promoted: the ratio of the cost dispatched in the window less what was promoted in it.

    None, no cap, while the last sample knows no cost, and while a consumer has nothing waiting: its capacity would lie
    idle.  Promotion goes on while there is any room, so it may be over by one request.
    """
    known = [s.dispatched_units for s in samples if s.dispatched_units is not None]
    if has_idle or not known or samples[-1].dispatched_units is None:
        return None
    return aged_ratio * (known[-1] - known[0]) - sum(promoted_units(samples).values())


def promoted_units(samples: Sequence[Sample]) -> dict[Priority, float]:
    """Cost promoted in the window by class."""
    return {p: sum(s.promoted_units.get(p, 0.0) for s in samples) for p in Priority}


def next_class(due: Collection[Priority], promoted: Mapping[Priority, float]) -> Priority:
    """Of the classes with late work, the one that was promoted least: a flood of one leaves the others their part."""
    return min(due, key=lambda p: (promoted.get(p, 0.0), -list(Priority).index(p)))


def ratio(pool: Pool, lane: Lane, waiting: Collection[Lane]) -> float:
    """The lane's part of dispatched cost while `waiting` wait beside it: the consumers' shares, told ahead."""
    tiers = {other.tier for other in waiting} | {lane.tier}
    unaged = sum(_tier_weight(pool, tier) for tier in tiers if tier is not Tier.AGED)
    if lane.tier is Tier.AGED:
        tier_ratio = pool.aged_ratio if unaged else 1.0
    else:
        tier_ratio = _tier_weight(pool, lane.tier) / unaged * (1 - pool.aged_ratio if Tier.AGED in tiers else 1.0)
    lengths = {other.length for other in waiting if other.tier is lane.tier} | {lane.length}
    return tier_ratio * _length_weight(pool, lane.length) / sum(_length_weight(pool, length) for length in lengths)


def wait_s(ahead_units: float | None, cost_units: float, ratio: float, units_per_s: float | None) -> float | None:
    """Until a lane has served what is ahead and this; None while the cost ahead or the pool's rate is unknown."""
    if ahead_units is None or not units_per_s:
        return None
    return (ahead_units + cost_units) / (ratio * units_per_s)


def not_worth_records(aged_units: float, mean_units: float, lane_ratio: float, aged_lane_ratio: float) -> int:
    """How many records at a lane's head it serves sooner than the aged tier would serve a copy of equal cost.

    They need no look; the first behind them is the oldest that a copy helps.
    """
    sooner_units = (aged_units + mean_units) * lane_ratio / aged_lane_ratio - mean_units
    return max(0, int(sooner_units / mean_units))


@dataclass(frozen=True, slots=True)
class Terms:
    """What the starvation bound depends on."""

    units_per_s: float
    """Rate of the owners that serve: of its own for the lane's bound, of all of them for the aged one."""
    lane_ratio: float
    """Guaranteed to its lane while all lanes wait."""
    aged_lane_ratio: float
    """The same of the aged lane of its length."""
    aged_ratio: float
    dearest_units: float
    """Cost of the dearest request."""
    threshold_s: float
    step_s: float
    """Between two looks of the promoter."""
    window_s: float
    """Over which the cost cap holds."""


def lane_bound_s(terms: Terms, ahead_units: float, cost_units: float) -> float:
    """Longest wait of work on a lane whose owner serves: (ahead + cost) / (lane_ratio * rate) + one dearest job a lane.

    `ahead_units`: on its lane when it joined, at the same owner.  Admission refuses what would wait longer than its
    class may, so for every class the bound is `max_wait_s` plus the last term, in any flood of any other class.
    The last term: jobs are not cut, so each other lane may be one dearest job ahead, and its sibling one at the tier's
    rate.
    """
    t = terms
    return (ahead_units + cost_units + t.dearest_units) / (t.lane_ratio * t.units_per_s) + _whole_jobs_s(t)


def aged_bound_s(terms: Terms, due_units: float, aged_units: float) -> float:
    """Longest wait of work of any class, whatever its owner does: its threshold, then promotion, then the aged lane.

    threshold + step + window + (due + dearest) / (aged_ratio / 3 * rate)
    + (aged + dearest) / (aged_lane_ratio * rate) + one dearest job a lane.

    `due_units`: late work of its class, itself included, not yet promoted when its threshold came; each of the three
    classes gets at least a third of what the cost cap allows, which is aged_ratio of the rate after a window at most.
    `aged_units`: in its aged lane before it, at most `aged_backlog_records` requests.
    """
    t = terms
    promoted_s = (due_units + t.dearest_units) / (t.aged_ratio / len(Priority) * t.units_per_s)
    served_s = (aged_units + t.dearest_units) / (t.aged_lane_ratio * t.units_per_s)
    return t.threshold_s + t.step_s + t.window_s + promoted_s + served_s + _whole_jobs_s(t)


def _whole_jobs_s(terms: Terms) -> float:
    return _LANES * terms.dearest_units / terms.units_per_s


def _tier_weight(pool: Pool, tier: Tier) -> float:
    return {Tier.HIGH: pool.high_weight, Tier.MEDIUM: pool.medium_weight, Tier.LOW: pool.low_weight}[tier]


def _length_weight(pool: Pool, length: Length) -> float:
    return pool.short_weight if length is Length.SHORT else pool.long_weight
