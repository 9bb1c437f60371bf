"""What the log says of each request id: its answers, what its attempts used, what was charged.  Keeps no body."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from streams.policy import settlement
from topics.records import Decision, Origin, Reply, Tokens, Usage
from topics.settings import Model

Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""
_ADMITTED_AGAIN = -1.0


class Spot(msgspec.Struct, frozen=True, gc=False):
    """Where a record lies, and when it was written."""

    topic: str
    partition: int
    offset: int
    written_s: float


class Answered(msgspec.Struct, frozen=True, gc=False):
    """A terminal reply of a consumer."""

    spot: Spot
    origin: Place
    attempt: int
    tokens: Tokens
    cost_units: float | None
    finished_s: float


class Used(msgspec.Struct, frozen=True, gc=False):
    """A usage record; `units` is None where the settings know no price for its model."""

    spot: Spot
    attempt: int
    partial: bool
    tokens: Tokens
    finished_s: float
    units: float | None

    def is_same_end(self, other: "Used") -> bool:
        """Whether both tell of one end: who tells, and how it was answered, may differ after a takeover."""
        mine = (self.attempt, self.partial, self.tokens, self.finished_s)
        return mine == (other.attempt, other.partial, other.tokens, other.finished_s)


class Charged(msgspec.Struct, frozen=True, gc=False):
    """A settlement in the decision log; None is what it does not say."""

    spot: Spot
    verdict: str
    attempt: int
    partial: bool
    at_s: float
    tokens: Tokens | None
    real_units: float | None
    reserved_units: float | None
    refunded_units: float | None

    def is_same(self, other: "Charged") -> bool:
        """Whether both are one entry that was sent twice."""
        mine = (self.verdict, self.attempt, self.partial, self.at_s)
        return mine == (other.verdict, other.attempt, other.partial, other.at_s)


@dataclass(slots=True)
class Account:
    """One id.  Lists are in the order of the log, without equal repeats."""

    answers: list[Answered] = field(default_factory=list)
    used: list[Used] = field(default_factory=list)
    charged: list[Charged] = field(default_factory=list)
    is_ended: bool = False
    """Some terminal reply or dead letter is there, a consumer's or not."""
    admitted_units: float | None = None
    """What was reserved; below zero when it was admitted again and the first figure may not be in the log."""

    @property
    def finals(self) -> list[Used]:
        """The usage of attempts that ended the request."""
        return [used for used in self.used if not used.partial]

    @property
    def runs(self) -> int:
        """How often the id was answered by a consumer: once per landing record that it was not forgotten for."""
        return len({answer.origin for answer in self.answers})


class Accounts:
    """All ids.  Invariant: memory grows with ids and attempts, never with bodies or equal repeats."""

    def __init__(self, models: Mapping[str, Model] | None = None) -> None:
        """`models` price the usage."""
        self._models = models or {}
        self.by_id: dict[str, Account] = {}
        self.repeated_usages = 0

    def reply(self, reply: Reply, spot: Spot) -> None:
        """Note a terminal reply that is not the copy of one.  Only a consumer's has tokens, also when they are none."""
        account = self._of(reply.id)
        account.is_ended = True
        if reply.tokens is None or reply.origin is None:
            return
        timing = reply.timing
        finished_s = spot.written_s if timing is None or timing.finished_s is None else timing.finished_s
        answer = Answered(spot, place(reply.origin), reply.attempt, reply.tokens, reply.cost_units, finished_s)
        account.answers.append(answer)

    def usage(self, usage: Usage, spot: Spot) -> None:
        """Note what an attempt used."""
        units = settlement.real_units(usage, self._models) if usage.model in self._models else None
        used = Used(spot, usage.attempt, usage.partial, usage.tokens, usage.finished_s, units)
        account = self._of(usage.id)
        if any(used.is_same_end(earlier) for earlier in account.used):
            self.repeated_usages += 1
        else:
            account.used.append(used)

    def decision(self, decision: Decision, spot: Spot) -> None:
        """Note an admission or a settlement; other decisions charge nothing, and those of a shadow nobody."""
        if decision.shadow is not None:
            return
        if decision.stage == "admission" and decision.verdict == "admit":
            account, units = self._of(decision.id), _number(decision, "cost_units")
            is_first = account.admitted_units is None and "again" not in decision.inputs
            account.admitted_units = units if is_first and units is not None else _ADMITTED_AGAIN
        elif decision.stage == "settlement":
            account, charged = self._of(decision.id), _charged(decision, spot)
            if not any(charged.is_same(earlier) for earlier in account.charged):
                account.charged.append(charged)

    def dead_letter(self, request_id: str | None) -> None:
        """Note that an answer could be written nowhere, or that an operator has the rest to do."""
        account = self.by_id.get(request_id or "")
        if account is not None:
            account.is_ended = True

    def _of(self, request_id: str) -> Account:
        account = self.by_id.get(request_id)
        if account is None:
            account = self.by_id[request_id] = Account()
        return account


def place(origin: Origin) -> Place:
    """Coordinates as a key; topics are few and their names are kept once."""
    return (sys.intern(origin.topic), origin.partition, origin.offset)


def _charged(decision: Decision, spot: Spot) -> Charged:
    numbers = [_number(decision, name) for name in ("prompt_tokens", "output_tokens", "cached_tokens")]
    prompt, output, cached = (None if number is None else int(number) for number in numbers)
    tokens = None if prompt is None or output is None else Tokens(prompt=prompt, output=output, cached=cached or 0)
    return Charged(
        spot,
        sys.intern(decision.verdict),
        int(_number(decision, "attempt") or 1),
        decision.inputs.get("partial") is True,
        decision.at_s,
        tokens,
        _number(decision, "real_units"),
        _number(decision, "reserved_units"),
        _number(decision, "refunded_units"),
    )


def _number(decision: Decision, name: str) -> float | None:
    value = decision.inputs.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
