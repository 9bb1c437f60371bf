"""Admission: may this request spend GPU time now?  Pure; the budget's answer and the time are arguments."""

from dataclasses import dataclass

from topics.outcomes import Outcome, Reason
from topics.records import Price, Request

_LEVEL_REASONS = {"global": Reason.BUDGET_GLOBAL, "pool": Reason.BUDGET_POOL, "tenant": Reason.BUDGET_TENANT}


@dataclass(frozen=True, slots=True)
class Paid:
    """Every level had the units, and they are reserved."""


@dataclass(frozen=True, slots=True)
class Short:
    """A level has too little; it will have enough in `wait_s`."""

    level: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class Never:
    """The request costs more than the level can ever hold."""

    level: str
    cap_units: float


Funds = Paid | Short | Never


@dataclass(frozen=True, slots=True)
class Admit:
    """Goes to a lane."""


@dataclass(frozen=True, slots=True)
class Defer:
    """Comes back after `delay_s`, one of the fixed delays."""

    delay_s: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Reject:
    """Ends here."""

    outcome: Outcome
    reason: Reason
    detail: str
    retry_after_s: float | None = None


Verdict = Admit | Defer | Reject

REFUSED_EARLIER = Reject(Outcome.REJECTED_INVALID, Reason.NONE, "it was refused under the settings of that time")
DEADLINE_UNREACHABLE = Reject(
    Outcome.REJECTED_DEADLINE, Reason.DEADLINE_UNREACHABLE, "it could not finish by its deadline even if it ran at once"
)


def patience_s(request: Request, max_deferral_s: float, now_s: float) -> float:
    """Seconds from now that the request may wait for budget: to its deadline, or `max_deferral_s` after arrival."""
    until_s = request.arrived_s + max_deferral_s
    if request.deadline_s is not None:
        until_s = min(until_s, request.deadline_s)
    return max(0.0, until_s - now_s)


def fits_deadline(request: Request, price: Price, now_s: float) -> bool:
    """Whether the request could meet its deadline if it ran at once, alone (a unit is a millisecond of an engine)."""
    return request.deadline_s is None or now_s + price.cost_units / 1000 <= request.deadline_s


def decide(funds: Funds, wait_limit_s: float, delays_s: tuple[int, ...]) -> Verdict:
    """Admit what is paid; defer what will be affordable in time; reject the rest.

    `wait_limit_s` is the request's patience; the delay is the longest fixed one that does not overshoot the wait by
    more than the shortest, so that the budget is used soon after it is there.
    """
    match funds:
        case Paid():
            return Admit()
        case Never(level, cap_units):
            detail = f"it costs more than the {level} budget can ever hold ({cap_units:.0f} units)"
            return Reject(Outcome.REJECTED_TOO_LARGE, _LEVEL_REASONS[level], detail)
        case Short(level, wait_s):
            if wait_s > wait_limit_s:
                detail = f"the {level} budget is spent"
                return Reject(Outcome.REJECTED_BUDGET, _LEVEL_REASONS[level], detail, retry_after_s=round(wait_s, 3))
            fitting = [delay for delay in delays_s if delay <= max(wait_s, min(delays_s))]
            return Defer(max(fitting), _LEVEL_REASONS[level])
