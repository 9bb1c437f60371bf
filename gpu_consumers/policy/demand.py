"""Demand: how much of the engine work of one length asks for, and what that leaves to longs.  Pure.

Shares of the engine, 0 to 1.  The mean over the last seconds counts, waiting work included: a single look would open
and close the engine for longs with each short that comes and goes.
"""

import math
from dataclasses import dataclass

import msgspec

HALF_LIFE_S = 5.0
"""Too small: the cap flaps.  Too large: shorts that begin to come find no room, and it stays free when they end."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Bounds of what longs may hold."""

    most_ratio: float = 0.75
    """While a short waits.  Too large: shorts find no free sequence.  Too small: longs idle in bursts of shorts."""
    least_ratio: float = 0.25
    """However many shorts come (> 0).  Too large: shorts wait.  Too small: longs crawl while shorts come."""


class Demand(msgspec.Struct, frozen=True):
    """Mean share of the engine that work of one length held or waited for; `present_ratio` since `at_s`."""

    at_s: float
    ratio: float = 0.0
    present_ratio: float = 0.0


def follow(demand: Demand, present_ratio: float, now_s: float) -> Demand:
    """Take in what is asked for from now on; more than the engine holds counts as all of it."""
    took_s = now_s - demand.at_s
    kept_ratio = 0.5 ** (took_s / HALF_LIFE_S) if took_s > 0 else 1.0
    mean_ratio = demand.ratio * kept_ratio + demand.present_ratio * (1 - kept_ratio)
    return Demand(now_s, mean_ratio, present_ratio if present_ratio < 1 else 1.0)


def longs_cap_ratio(shorts: Demand, sequences: int, *, is_short_waiting: bool, rules: Rules) -> float:
    """Where longs stand back, so that shorts find room: the whole engine when none came lately.

    What shorts need on average stays free, and the square root of it in sequences more, since they come by chance.
    """
    need_ratio = shorts.ratio + math.sqrt(shorts.ratio / sequences)
    most_ratio = rules.most_ratio if is_short_waiting else 1.0
    return max(rules.least_ratio, min(most_ratio, 1 - need_ratio))
