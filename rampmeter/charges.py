"""Proves from what the log says of each id that its one answer was used for and charged as it says.  Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count, pairwise

import msgspec

from rampmeter import positions
from rampmeter.accounts import Account, Accounts, Answered, Charged, Place, Spot, Used

KEPT = 1000
"""Findings of one kind that are kept; all are counted."""
_ROUNDED = 0.0011
"""Cost in the decision log has three decimals."""
_CHARGES = ("settled", "unknown", "partial")


class Fault(StrEnum):
    """What can be wrong with an id; stable words for machines."""

    REPLY_WITHOUT_USAGE = "reply_without_usage"
    USAGE_WITHOUT_REPLY = "usage_without_reply"
    DOUBLE_OUTCOME = "double_outcome"
    DOUBLE_USAGE = "double_usage"
    ATTEMPT_GAP = "attempt_gap"
    COST_MISMATCH = "cost_mismatch"
    CHARGE_MISMATCH = "charge_mismatch"
    DOUBLE_SETTLEMENT = "double_settlement"
    UNSETTLED = "unsettled"


class Finding(msgspec.Struct, frozen=True):
    """One fault and the record that shows it."""

    kind: Fault
    id: str
    topic: str
    partition: int
    offset: int
    detail: str


class Charges(msgspec.Struct, frozen=True):
    """What was compared and what was found; `findings` holds the first of each kind."""

    answers: int = 0
    """Replies of consumers to records of the window."""
    usages: int = 0
    settlements: int = 0
    pending: int = 0
    """Ids of which a usage, a reply or a settlement may still be on its way."""
    repeats: int = 0
    """Usage records that told again what was told: harmless."""
    reruns: int = 0
    """Ends whose process died before its reply, and that were run again: the GPU worked twice, charged was one."""
    other_prices: int = 0
    """Ids that were priced under other settings than those of the audit, by all alike."""
    wrong: dict[str, int] = {}
    findings: list[Finding] = []

    def is_clean(self) -> bool:
        """Tell whether every charge is proven or may still come."""
        return not any(self.wrong.values())


@dataclass(frozen=True, slots=True)
class Window:
    """What is judged: ids whose landing records are among `sent`; what is younger than `pending_s` may still come."""

    sent: Container[Place]
    since_s: float
    now_s: float
    pending_s: float
    dedupe_window_s: float = 600.0

    def is_young(self, spot: Spot) -> bool:
        """Whether what belongs to this record may still be on its way."""
        return self.now_s - spot.written_s <= self.pending_s


@dataclass(slots=True)
class _Tally:
    counts: Counter[str] = field(default_factory=Counter)
    wrong: Counter[Fault] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def note(self, request_id: str, fault: Fault, spot: Spot, detail: str) -> None:
        self.wrong[fault] += 1
        if self.wrong[fault] <= KEPT:
            self.findings.append(Finding(fault, request_id, spot.topic, spot.partition, spot.offset, detail))


class _Case:
    """One id under judgement; the rules note in passing what is no fault."""

    def __init__(self, account: Account, window: Window) -> None:
        self.account, self.window = account, window
        self.is_pending = self.has_other_prices = False
        self.reruns = 0

    def faults(self) -> Iterator[tuple[Fault, Spot, str]]:
        """All that is wrong."""
        yield from self._answers()
        yield from self._outcomes()
        yield from self._unanswered()
        yield from self._unsettled()
        for charged in self.account.charged:
            yield from self._charge(charged)
        yield from self._settled_twice()

    def _answers(self) -> Iterator[tuple[Fault, Spot, str]]:
        finals = self.account.finals
        owned: dict[Place, int] = {}
        for answer in self.account.answers:
            number = _own(answer, finals)
            if number is not None:
                owned.setdefault(answer.origin, number)
                yield from self._cost(answer, finals[number])
            elif answer.origin in self.window.sent:
                yield from self._late(Fault.REPLY_WITHOUT_USAGE, answer.spot, f"attempt {answer.attempt}")
            yield from self._gap(answer)
        if owned:
            yield from self._extra(finals, set(owned.values()))

    def _extra(self, finals: list[Used], owned: set[int]) -> Iterator[tuple[Fault, Spot, str]]:
        """A run whose process died before it could answer lies before the one that did; behind an answer none may."""
        for number, used in enumerate(finals):
            if number in owned:
                continue
            if number < max(owned):
                self.reruns += 1
            else:
                yield Fault.DOUBLE_USAGE, used.spot, f"attempt {used.attempt}, {_units(used.units)}"

    def _cost(self, answer: Answered, used: Used) -> Iterator[tuple[Fault, Spot, str]]:
        if answer.tokens == used.tokens and (answer.cost_units is None or used.units is None):
            self.has_other_prices |= (answer.cost_units is None) != (used.units is None)
        elif answer.tokens != used.tokens or not _close(answer.cost_units, used.units):
            if answer.tokens == used.tokens and self._is_agreed(answer):
                self.has_other_prices = True
                return
            said, is_ = _units(answer.cost_units), _units(used.units)
            yield Fault.COST_MISMATCH, answer.spot, f"the reply says {said}, its usage is {is_}"

    def _is_agreed(self, answer: Answered) -> bool:
        """Whether the settlement came to the reply's cost from the same tokens, in another process."""
        return any(
            not charged.partial and charged.tokens == answer.tokens and _close(charged.real_units, answer.cost_units)
            for charged in self.account.charged
        )

    def _gap(self, answer: Answered) -> Iterator[tuple[Fault, Spot, str]]:
        seen = {used.attempt for used in self.account.used}
        missing = next(number for number in count(1) if number not in seen)
        if missing < answer.attempt and answer.origin in self.window.sent:
            yield from self._late(
                Fault.ATTEMPT_GAP, answer.spot, f"answered by attempt {answer.attempt}, no usage of {missing}"
            )

    def _outcomes(self) -> Iterator[tuple[Fault, Spot, str]]:
        """Another record with this id within the dedupe window gets a copy of the first answer, and is not run."""
        first: dict[Place, Answered] = {}
        for answer in self.account.answers:
            first.setdefault(answer.origin, answer)
        runs = sorted(first.values(), key=lambda answer: answer.finished_s)
        for earlier, later in pairwise(runs):
            after_s = later.finished_s - earlier.finished_s
            if after_s < self.window.dedupe_window_s:
                detail = f"run for another record {after_s:.0f} s after {positions.shown(*earlier.origin)}"
                yield Fault.DOUBLE_OUTCOME, later.spot, detail

    def _unanswered(self) -> Iterator[tuple[Fault, Spot, str]]:
        if self.account.used and not self.account.is_ended:
            last = self.account.used[-1]
            yield from self._late(Fault.USAGE_WITHOUT_REPLY, last.spot, f"attempt {last.attempt}, {_units(last.units)}")

    def _unsettled(self) -> Iterator[tuple[Fault, Spot, str]]:
        told = {(charged.attempt, charged.partial) for charged in self.account.charged}
        for used in self.account.used:
            if (used.attempt, used.partial) not in told:
                yield from self._late(Fault.UNSETTLED, used.spot, f"attempt {used.attempt}, {_units(used.units)}")

    def _charge(self, charged: Charged) -> Iterator[tuple[Fault, Spot, str]]:
        if charged.verdict not in _CHARGES or charged.real_units is None or charged.tokens is None:
            return
        tried = [u for u in self.account.used if (u.attempt, u.partial) == (charged.attempt, charged.partial)]
        same = [used for used in tried if used.tokens == charged.tokens]
        if not same:
            what = _units(tried[-1].units) if tried else "nothing"
            detail = f"attempt {charged.attempt}: charged {_units(charged.real_units)}, used {what}"
            yield Fault.CHARGE_MISMATCH, charged.spot, detail
        elif not any(used.units is None or _close(used.units, charged.real_units) for used in same):
            if any(_close(answer.cost_units, charged.real_units) for answer in self.account.answers):
                self.has_other_prices = True
                return
            detail = f"attempt {charged.attempt}: charged {_units(charged.real_units)}, used {_units(same[-1].units)}"
            yield Fault.CHARGE_MISMATCH, charged.spot, detail
        elif (taken := self._taken(charged)) is not None:
            detail = f"attempt {charged.attempt}: cost {_units(charged.real_units)}, taken {_units(taken)}"
            yield Fault.CHARGE_MISMATCH, charged.spot, detail

    def _taken(self, charged: Charged) -> float | None:
        """What the budgets lost when it is not the cost, and the log says what they held."""
        if charged.refunded_units is None or charged.reserved_units is None:
            return None
        held = 0.0 if charged.partial else charged.reserved_units
        taken = held - charged.refunded_units
        # A reservation that ended or lapsed before had been given back already.
        is_right = _close(taken, charged.real_units) or (
            charged.verdict == "settled" and _close(-charged.refunded_units, charged.real_units)
        )
        # Admitted twice, or without Redis: what was held may be another price than the lane's record says.
        is_known = charged.verdict != "settled" or _close(self.account.admitted_units, charged.reserved_units)
        return None if is_right or not is_known else taken

    def _settled_twice(self) -> Iterator[tuple[Fault, Spot, str]]:
        taken: dict[int, list[Charged]] = defaultdict(list)
        for charged in self.account.charged:
            if charged.verdict in _CHARGES:
                taken[charged.attempt if charged.partial else 0].append(charged)
        for entries in taken.values():
            if len(entries) > max(1, self.account.runs):
                units = " and ".join(_units(entry.real_units) for entry in entries)
                yield Fault.DOUBLE_SETTLEMENT, entries[-1].spot, f"charged {units}"

    def _late(self, fault: Fault, spot: Spot, detail: str) -> Iterator[tuple[Fault, Spot, str]]:
        """A fault, once what is missing can no longer be on its way."""
        if self.window.is_young(spot):
            self.is_pending = True
        else:
            yield fault, spot, detail


def judge(accounts: Accounts, window: Window) -> Charges:
    """Judge all ids that lie in the window."""
    tally = _Tally()
    for request_id, account in accounts.by_id.items():
        if not _is_inside(account, window):
            continue
        case = _Case(account, window)
        for fault, spot, detail in case.faults():
            tally.note(request_id, fault, spot, detail)
        tally.counts["answers"] += len(account.answers)
        tally.counts["usages"] += len(account.used)
        tally.counts["settlements"] += len(account.charged)
        tally.counts["pending"] += case.is_pending
        tally.counts["reruns"] += case.reruns
        tally.counts["other_prices"] += case.has_other_prices
    order = list(Fault)
    return Charges(
        **tally.counts,
        repeats=accounts.repeated_usages,
        wrong={str(fault): tally.wrong[fault] for fault in Fault},
        findings=sorted(tally.findings, key=lambda finding: order.index(finding.kind)),
    )


def _is_inside(account: Account, window: Window) -> bool:
    """Only an answer names its landing record; of ids without one the window's first moments may lack the beginning."""
    if account.answers:
        return any(answer.origin in window.sent for answer in account.answers)
    spots = [used.spot for used in account.used] + [charged.spot for charged in account.charged]
    return bool(spots) and min(spot.written_s for spot in spots) >= window.since_s + window.pending_s


def _own(answer: Answered, finals: list[Used]) -> int | None:
    """Which usage is the answer's: the likest one of its attempt."""
    mine = [number for number, used in enumerate(finals) if used.attempt == answer.attempt]
    return max(
        mine,
        key=lambda n: (finals[n].finished_s == answer.finished_s, finals[n].tokens == answer.tokens, -n),
        default=None,
    )


def _close(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and math.isclose(one, other, rel_tol=1e-6, abs_tol=_ROUNDED)


def _units(units: float | None) -> str:
    return "an unknown cost" if units is None else f"{units:.3f} units"
