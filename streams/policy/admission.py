"""Admission: may this request spend GPU time now?  Pure; what the ledger knows and the time are arguments."""

from dataclasses import dataclass

import msgspec

from streams.policy import sharing
from streams.policy.sharing import Capacity, Share
from topics.outcomes import Outcome, Reason
from topics.records import Price, Request

LEVELS = ("global", "pool", "tenant", "class")
_LEVEL_REASONS = {
    "global": Reason.BUDGET_GLOBAL,
    "pool": Reason.BUDGET_POOL,
    "tenant": Reason.BUDGET_TENANT,
    "class": Reason.BUDGET_CLASS,
}


class Terms(msgspec.Struct, frozen=True):
    """What a request asks for, in seconds from now."""

    units: float
    patience_s: float
    """How long it may wait for budget."""
    lane_wait_limit_s: float
    """How long it may wait for an engine: to its deadline less its time in the engine, or as long as its class may.

    Below zero it is too late already."""
    by_deadline: bool
    """Whether a deadline of its own set that limit."""
    is_back: bool
    """It was looked at before and waited."""


class Facts(msgspec.Struct, frozen=True):
    """What the ledger said of a new request.  Nothing was taken unless it can be admitted."""

    share: Share
    level: str = ""
    """The budget level with the longest wait, if any lacks units."""
    budget_wait_s: float = 0.0
    """Until all levels have the units; 0 when they have them."""
    never_cap_units: float | None = None
    """What `level` holds at most, when the request costs more."""
    attained_units: float = 0.0
    """What the tenant was served lately over its weight: the order in which waiting tenants come."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that decide."""

    window_s: float
    hold_s: float
    delays_s: tuple[int, ...]


class Admit(msgspec.Struct, frozen=True):
    """Goes to a lane."""

    wait_estimate_s: float | None = None
    position: int | None = None


class Hold(msgspec.Struct, frozen=True):
    """Waits in this worker's memory for about `wait_s`."""

    wait_s: float
    reason: Reason


class Defer(msgspec.Struct, frozen=True):
    """Comes back after `delay_s`, one of the fixed delays."""

    delay_s: int
    reason: Reason


class Reject(msgspec.Struct, frozen=True):
    """Ends here."""

    outcome: Outcome
    reason: Reason
    detail: str
    retry_after_s: float | None = None
    wait_estimate_s: float | None = None
    position: int | None = None


Verdict = Admit | Hold | Defer | Reject

REFUSED_EARLIER = Reject(Outcome.REJECTED_INVALID, Reason.NONE, "it was refused under the settings of that time")
ID_TAKEN = Reject(
    Outcome.REJECTED_INVALID, Reason.BAD_IDENTITY, "another tenant has used this id; ids are for one request each"
)
POOL_GONE = Reject(
    Outcome.REJECTED_INVALID, Reason.UNKNOWN_MODEL, "the settings no longer have the pool that it was admitted to"
)
CANCELLED = Reject(Outcome.CANCELLED, Reason.CANCELLED, "a cancel order came before it reached a lane")
DEADLINE_UNREACHABLE = Reject(
    Outcome.REJECTED_DEADLINE, Reason.DEADLINE_UNREACHABLE, "it could not finish by its deadline even if it ran at once"
)


def terms(
    request: Request, price: Price, now_s: float, *, max_deferral_s: float, max_wait_s: float, is_back: bool
) -> Terms:
    """The terms of a priced request.  `max_wait_s`: how long its class may wait in all, from its arrival."""
    patience_until_s = request.arrived_s + max_deferral_s
    limit_until_s = request.arrived_s + max_wait_s
    by_deadline = False
    if request.deadline_s is not None:
        latest_start_s = request.deadline_s - _service_s(price)
        patience_until_s = min(patience_until_s, latest_start_s)
        by_deadline = latest_start_s <= limit_until_s
        limit_until_s = min(limit_until_s, latest_start_s)
    return Terms(price.cost_units, max(0.0, patience_until_s - now_s), limit_until_s - now_s, by_deadline, is_back)


def budget_wait_limit_s(asked: Terms, rules: Rules) -> float:
    """The longest wait for budget that it is worth to sit out.

    After a standstill of ours everyone's patience is over: at the first look a short wait always is.
    """
    grace_s = 0.0 if asked.is_back else min(rules.hold_s, asked.lane_wait_limit_s)
    return max(asked.patience_s, grace_s)


def fits_deadline(request: Request, price: Price, now_s: float) -> bool:
    """Whether the request could meet its deadline if it ran at once."""
    return request.deadline_s is None or now_s + _service_s(price) <= request.deadline_s


def decide(asked: Terms, facts: Facts, capacity: Capacity, rules: Rules) -> Verdict:
    """Refuse what can never be paid or would come too late, let wait what can be admitted in time, admit the rest.

    Admit if and only if the ledger reserved: `reserve.lua` asks the same questions.
    """
    on_lane_s = sharing.on_lane_s(facts.share, capacity)
    return (
        _too_large(facts)
        or _too_late(asked, on_lane_s or 0.0, facts.share)
        or _unpaid(asked, facts, rules)
        or _crowded(asked, facts.share, capacity, rules)
        or Admit(None if on_lane_s is None else round(on_lane_s, 3), facts.share.lane_open_requests)
    )


def as_reserved(verdict: Verdict, *, is_paid: bool) -> Verdict:
    """The ledger has the last word where the two differ, by the last digit of a sum."""
    if is_paid:
        return verdict if isinstance(verdict, Admit) else Admit()
    return Hold(0.0, Reason.FAIR_SHARE) if isinstance(verdict, Admit) else verdict


def decide_paused(asked: Terms, rules: Rules) -> Defer | Reject:
    """A paused tenant, pool or class: its requests wait until it goes on or they run out of time.

    In the middle delay: the longest keeps them long after it goes on, the shortest moves all of them once a second.
    """
    delays_s = [delay for delay in sorted(rules.delays_s) if delay <= asked.lane_wait_limit_s]
    if delays_s:
        return Defer(min(delays_s[-1], sorted(rules.delays_s)[len(rules.delays_s) // 2]), Reason.PAUSED)
    outcome = Outcome.REJECTED_DEADLINE if asked.by_deadline else Outcome.REJECTED_OVERLOAD
    return Reject(outcome, Reason.PAUSED, "its tenant, pool or class is paused, and it cannot wait any longer")


def decide_crammed(verdict: Verdict, rules: Rules) -> Verdict:
    """What may not wait in memory, since there is no room or it has waited there for long, waits in a delay topic."""
    return Defer(min(rules.delays_s), verdict.reason) if isinstance(verdict, Hold) else verdict


def _too_large(facts: Facts) -> Reject | None:
    if facts.never_cap_units is None:
        return None
    detail = f"it costs more than the {facts.level} budget can ever hold ({facts.never_cap_units:.0f} units)"
    return Reject(Outcome.REJECTED_TOO_LARGE, _LEVEL_REASONS[facts.level], detail)


def _too_late(asked: Terms, wait_s: float, share: Share) -> Reject | None:
    """The wait is longer than its deadline or its class allows; 0 while nothing is known of it."""
    limit_s = asked.lane_wait_limit_s
    if wait_s <= limit_s:
        return None
    outcome, reason = Outcome.REJECTED_OVERLOAD, Reason.LANE_WAIT
    detail = f"it would wait {wait_s:.1f} s, longer than its class may ({limit_s:.1f} s are left)"
    if asked.by_deadline:
        outcome, reason = Outcome.REJECTED_DEADLINE, Reason.DEADLINE_UNREACHABLE
        detail = f"it would start in {wait_s:.1f} s and must start in {limit_s:.1f} s to meet its deadline"
    return Reject(
        outcome,
        reason,
        detail,
        retry_after_s=round(wait_s - limit_s, 3),
        wait_estimate_s=round(wait_s, 3),
        position=share.lane_open_requests,
    )


def _unpaid(asked: Terms, facts: Facts, rules: Rules) -> Hold | Defer | Reject | None:
    if facts.budget_wait_s <= 0:
        return None
    reason = _LEVEL_REASONS[facts.level]
    if facts.budget_wait_s <= budget_wait_limit_s(asked, rules):
        return _wait(facts.budget_wait_s, reason, rules)
    detail = f"the {facts.level} budget is spent"
    return Reject(Outcome.REJECTED_BUDGET, reason, detail, retry_after_s=round(facts.budget_wait_s, 3))


def _crowded(asked: Terms, share: Share, capacity: Capacity, rules: Rules) -> Hold | Defer | Reject | None:
    if not sharing.must_wait(asked.units, share, capacity.window_units(rules.window_s), is_back=asked.is_back):
        return None
    wait_s = sharing.before_lane_s(asked.units, share, capacity, rules.window_s, is_back=asked.is_back)
    in_all_s = sharing.in_all_s(asked.units, share, capacity, is_back=asked.is_back)
    # At the guaranteed shares, and others may want less than theirs: one looks again while the pool has work, so that
    # no capacity lies idle when it was too long.
    look_s = min(wait_s, sharing.alone_s(asked.units, share, capacity, is_back=asked.is_back)) / 2
    return _too_late(asked, in_all_s, share) or _wait(look_s, Reason.FAIR_SHARE, rules)


def _service_s(price: Price) -> float:
    """Time in the engine: what its like took, or as if it ran alone (a unit is a millisecond of an engine)."""
    return price.cost_units / 1000 if price.service_s is None else price.service_s


def _wait(wait_s: float, reason: Reason, rules: Rules) -> Hold | Defer:
    """In memory when it is short; else the longest fixed delay that does not overshoot, so that it is back in time."""
    if wait_s <= rules.hold_s:
        return Hold(wait_s, reason)
    shortest_s = min(rules.delays_s)
    return Defer(max(delay for delay in rules.delays_s if delay <= max(wait_s, shortest_s)), reason)
