"""Selection: which lane of a pool is served next.  Pure.

Weighted fair queueing in cost units on two levels: tiers, then lengths within a tier.  Each child has a virtual start
(its served cost over its weight); the one that is furthest behind is served.  A child that was idle or held back starts
at the level's present time, so it neither loses nor hoards capacity.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from topics.records import Length, Tier


class Lane(NamedTuple):
    """One lane of the pool."""

    tier: Tier
    length: Length


# The order breaks ties.
TIERS = (Tier.HIGH, Tier.AGED, Tier.MEDIUM, Tier.LOW)
LENGTHS = (Length.SHORT, Length.LONG)
LANES = tuple(Lane(tier, length) for tier in TIERS for length in LENGTHS)
_INDEXES = {Lane(tier, length): (t, n) for t, tier in enumerate(TIERS) for n, length in enumerate(LENGTHS)}


@dataclass(frozen=True, slots=True)
class Shares:
    """How dispatched cost is divided while several lanes wait.

    Weights are relative; a tier's guaranteed share is its weight over the sum, times 1 - aged_ratio.
    """

    high: float = 8.0
    medium: float = 4.0
    low: float = 1.0
    aged_ratio: float = 0.1
    """Share of dispatched cost for aged work while other tiers wait: its guarantee and its cap (0 < r < 1).
    Too large: overload turns into oldest-first.  Too small: old work waits on."""
    short: float = 19.0
    long: float = 1.0
    """Too small against `short`: longs stand still in a burst of shorts.  Too large: shorts queue behind longs."""


class Credit(msgspec.Struct, frozen=True):
    """Virtual starts of the next jobs, in cost units over weight; one writer, the consumer's loop.

    Tiers, and lengths within each, in the order above.  Invariant: none ever falls.
    """

    tiers: tuple[float, ...] = (0.0,) * len(TIERS)
    lengths: tuple[tuple[float, ...], ...] = ((0.0,) * len(LENGTHS),) * len(TIERS)


class Window(msgspec.Struct, frozen=True):
    """Shares of the engine: what longs hold, and up to where another may enter (> 0), see `demand`."""

    longs_ratio: float = 0.0
    longs_cap_ratio: float = 1.0


def rank(lane: Lane) -> int:
    """The lane's order inside the engine, 0 first: shorts before longs, each in the order of the tiers."""
    tier, length = _INDEXES[lane]
    return length * len(TIERS) + tier


def is_long(rank: int) -> bool:
    """Whether that is the rank of a lane for longs."""
    return rank >= len(TIERS)


def guaranteed_ratio(shares: Shares, lane: Lane) -> float:
    """The lane's part of dispatched cost while every lane waits; it gets at least this whenever it waits."""
    if lane.tier is Tier.AGED:
        tier_ratio = shares.aged_ratio
    else:
        tier_ratio = (1 - shares.aged_ratio) * _tier_weight(shares, lane.tier) / _all_tiers_weight(shares)
    return tier_ratio * _length_weight(shares, lane.length) / (shares.short + shares.long)


def choose(credit: Credit, waiting: Collection[Lane], window: Window) -> Lane | None:
    """The lane to serve next, or None when none may be: longs at their cap stand back.

    Changes nothing: `charge` does, once the job has entered.
    """
    if window.longs_ratio >= window.longs_cap_ratio:
        waiting = [lane for lane in waiting if lane.length is Length.SHORT]
    return min(waiting, key=partial(_turn, credit)) if len(waiting) > 1 else next(iter(waiting), None)


def _turn(credit: Credit, lane: Lane) -> tuple[float, int, float, int]:
    """Order of the lanes: the tier that is furthest behind, and of its lengths the one that is."""
    tier, length = _INDEXES[lane]
    return credit.tiers[tier], tier, credit.lengths[tier][length], length


def charge(shares: Shares, credit: Credit, waiting: Collection[Lane], lane: Lane, cost_units: float) -> Credit:
    """The credit after a job of `lane` entered the engine; `waiting` as it was when the lane was chosen."""
    tier, length = _INDEXES[lane]
    tiers = _served(credit.tiers, tier, cost_units / _weight_among(shares, lane.tier, waiting))
    lengths = list(credit.lengths)
    lengths[tier] = _served(lengths[tier], length, cost_units / _length_weight(shares, lane.length))
    return Credit(tiers, tuple(lengths))


def _served(starts: tuple[float, ...], child: int, cost_per_weight: float) -> tuple[float, ...]:
    """The starts of siblings after a job of this child, whose own start is the present: none starts before."""
    now = starts[child]
    later = [start if start > now else now for start in starts]
    later[child] = now + cost_per_weight
    return tuple(later)


def _weight_among(shares: Shares, tier: Tier, waiting: Collection[Lane]) -> float:
    if tier is not Tier.AGED:
        return _tier_weight(shares, tier)
    # Whoever waits beside it, the aged tier comes out at its ratio of the cost.
    others = sum(_tier_weight(shares, other) for other in {lane.tier for lane in waiting} - {Tier.AGED})
    return (others or _all_tiers_weight(shares)) * shares.aged_ratio / (1 - shares.aged_ratio)


def _tier_weight(shares: Shares, tier: Tier) -> float:
    if tier is Tier.MEDIUM:
        return shares.medium
    return shares.high if tier is Tier.HIGH else shares.low


def _all_tiers_weight(shares: Shares) -> float:
    return shares.high + shares.medium + shares.low


def _length_weight(shares: Shares, length: Length) -> float:
    return shares.short if length is Length.SHORT else shares.long
