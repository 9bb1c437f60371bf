"""Admission while Redis does not answer: wait, go unasked, or live on this worker's part of the budgets.  Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from streams.policy.admission import Admit, Defer, Terms
from topics.outcomes import Reason

Mode = Literal["closed", "open", "local_share"]
Verdict = Admit | Defer

START_S = 1.0
"""Seconds of refill that a local bucket holds at most when an outage begins, so that none begins with a burst."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A budget, or one worker's part of it."""

    refill_units_per_s: float
    cap_units: float
    paced: bool = False

    def part(self, ratio: float) -> Self:
        """`ratio` of it; the parts of workers whose ratios sum to 1 are together the whole."""
        return replace(self, refill_units_per_s=self.refill_units_per_s * ratio, cap_units=self.cap_units * ratio)

    @property
    def top_units(self) -> float:
        """The level of a full bucket; a paced one saves nothing up."""
        return 0.0 if self.paced else self.cap_units

    @property
    def start_units(self) -> float:
        """The level at the begin of an outage."""
        return min(self.top_units, self.refill_units_per_s * START_S)


@dataclass(frozen=True, slots=True)
class Local:
    """A worker's part of one budget.  Invariant: `level_units` <= `limit.top_units`."""

    level_units: float
    as_of_s: float
    limit: Limit

    @classmethod
    def begun(cls, limit: Limit, now_s: float) -> Self:
        """The bucket of a budget that this outage has not touched yet."""
        return cls(limit.start_units, now_s, limit)

    def at(self, now_s: float, limit: Limit) -> Self:
        """The same later, under a limit that may have changed.

        What flowed in meanwhile is reckoned by the smaller of the two, so that no change creates units.
        """
        top_units = min(self.limit.top_units, limit.top_units)
        refill_units_per_s = min(self.limit.refill_units_per_s, limit.refill_units_per_s)
        level_units = self.level_units + max(0.0, now_s - self.as_of_s) * refill_units_per_s
        return type(self)(min(top_units, level_units), max(now_s, self.as_of_s), limit)

    def again(self, now_s: float) -> Self:
        """The same at the begin of another outage."""
        later = self.at(now_s, self.limit)
        return replace(later, level_units=min(later.level_units, self.limit.start_units))

    def wait_s(self, units: float) -> float | None:
        """Until it has the units, 0 when it has them; None when it never will."""
        if units > self.limit.cap_units or self.limit.refill_units_per_s <= 0:
            return None
        missing_units = -self.level_units if self.limit.paced else units - self.level_units
        return max(0.0, missing_units) / self.limit.refill_units_per_s

    def spend(self, units: float) -> Self:
        """The same without the units; a paced one owes them."""
        return replace(self, level_units=self.level_units - units)


def decide(mode: Mode, asked: Terms, parts: Sequence[Local], delays_s: Sequence[int]) -> Verdict:
    """Admit if the class may; else let it wait for Redis, whatever its patience: the ledger decides when it is back.

    `parts`: this worker's part of each of the request's budgets as they are now; `local_share` admits only what all of
    them have, and whoever applies that takes it from each.
    """
    if mode == "open":
        return Admit()
    if mode == "local_share" and all(part.wait_s(asked.units) == 0.0 for part in parts):
        return Admit()
    # Never a rejection: an earlier run of the same record may have put it on a lane, and then it is answered there.
    delays = sorted(delays_s)
    return Defer(delays[len(delays) // 2] if asked.is_back else delays[0], Reason.BUDGET_UNAVAILABLE)


def decide_stopped(delays_s: Sequence[int], *, is_cancelled: bool) -> Defer:
    """What is cancelled or paused waits: it may run already, and is then answered where it runs."""
    return Defer(min(delays_s), Reason.CANCELLED if is_cancelled else Reason.PAUSED)
