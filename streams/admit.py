"""The admission of one micro-batch: reserve, decide, send.  One Redis call and one broker wait serve them all."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from structlog import get_logger

from streams import metrics
from streams.apply import Writer
from streams.budgets import Ask, Budgets, BudgetsUnavailable, Closed, Ending, Paid, Redelivered, Refused, Repeated
from streams.budgets import Standing as Known
from streams.control import Controls
from streams.fallback import Fallback
from streams.fleet import Fleet
from streams.holding import Holding, Pending
from streams.outbox import Outbox, Outgoing
from streams.policy import admission, evidence
from streams.policy.admission import Admit, Hold, Reject, Rules, Terms, Verdict
from streams.policy.evidence import Field
from streams.policy.sharing import Capacity
from streams.repeats import Repeats
from streams.settings import StreamsSettings
from topics.clock import Clock
from topics.errors import ConfigError
from topics.outcomes import Reason
from topics.records import Reply, Work

_log = get_logger()
_RETRY_S = 0.5
_LOOK_RECORDS = 200
_LOOK_AGAIN_S = 0.25
"""Longest until a held request is asked about again: what it waits for may come sooner than predicted."""

Standing = Known | None
"""None: the ledger was not asked, or could not answer."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What admission works with; one of each in a process."""

    settings: StreamsSettings
    clock: Clock
    budgets: Budgets
    writer: Writer
    outbox: Outbox
    fleet: Fleet
    controls: Controls
    fallback: Fallback


@dataclass(slots=True, eq=False)
class _Case:
    """One pending request on its way through a batch."""

    pending: Pending
    asked: Terms | None
    ask: Ask
    paused: str | None = None
    records: list[Outgoing] = field(default_factory=list)
    verdict: Verdict | None = None

    @property
    def id(self) -> str:
        return self.ask.id


class Admission:
    """Carries a batch of pending requests to their end, or to where they wait.

    Order of effects: the reservation (idempotent per id and origin), then all sends, then the acknowledgement.
    A death between any two of them repeats the batch, and the repetition finds its traces.
    """

    def __init__(self, parts: Parts) -> None:
        """All parts are shared by the process's agents."""
        self._parts, self._settings = parts, parts.settings
        streams = parts.settings.streams
        self._rules = Rules(streams.fair.window_s, streams.fair.hold_s, parts.settings.topics.defer_delays_s)
        self._repeats = Repeats(parts.settings, parts.writer)
        self.holding = Holding(streams.fair.hold_records)

    async def run(self, pendings: Sequence[Pending]) -> None:
        """Decide and send; returns when the broker has everything that does not wait in memory."""
        now_s = self._parts.clock.wall_s()
        cases = [self._open(pending, now_s) for pending in pendings]
        pools = () if self._settings.streams.policy == "fifo" else {case.ask.pool for case in cases} - {""}
        capacities = {pool: self._parts.fleet.capacity(pool) for pool in pools}
        standings = await self._standings(cases, capacities)
        first = await self._repeats.first_answers(
            [(case.ask, standing) for case, standing in zip(cases, standings, strict=True)]
        )
        for case, standing in zip(cases, standings, strict=True):
            self._judge(case, standing, capacities.get(case.ask.pool, Capacity()), first.get(case.id))
        await self._finish(cases)
        await self.send([*(record for case in cases for record in case.records), *self._balances()])
        self._close(cases)

    async def look(self) -> None:
        """Ask again for what waits in memory and is due, and for what was cancelled meanwhile."""
        cancelled = self.holding.take_all(self._is_cancelled)
        due = self.holding.take_due(self._parts.clock.mono_s(), _LOOK_RECORDS)
        if cancelled or due:
            await self.run([*cancelled, *due])

    async def send(self, records: Sequence[Outgoing]) -> None:
        """Send; an answer that its reply topic will never take is dead-lettered by reference.

        Raises ConfigError when a topic of our own refuses a record: going on would lose it.
        """
        undelivered = await self._parts.outbox.deliver(records) if records else ()
        if undelivered:
            letters = [self._parts.writer.unanswerable(lost.record, lost.reason) for lost in undelivered]
            if any(letter is None for letter in letters):
                raise ConfigError(
                    [f"topic {lost.record.topic} takes no records: {lost.reason}" for lost in undelivered]
                )
            await self.send([letter for letter in letters if letter is not None])

    def _open(self, pending: Pending, now_s: float) -> _Case:
        item = pending.candidate.item
        if not isinstance(item, Work):
            return _Case(pending, None, Ask(item.id, item.origin, item.reply.topic, item.tenant or "", closed=True))
        request, price, streams = item.request, item.price, self._settings.streams
        asked = admission.terms(
            request,
            price,
            now_s,
            max_deferral_s=streams.max_deferral_s,
            max_wait_s=streams.max_wait_s[request.priority],
            is_back=pending.is_back,
        )
        ask = Ask(
            id=request.id,
            origin=request.origin,
            reply_topic=request.reply.topic,
            tenant=request.tenant,
            pool=price.pool,
            lane=f"{request.priority}.{price.length}",
            priority=request.priority,
            units=price.cost_units,
            lane_wait_limit_s=asked.lane_wait_limit_s,
            is_back=asked.is_back,
            closed=self._is_cancelled(pending),
        )
        paused = (
            None if ask.closed else self._parts.controls.paused_reason(request.tenant, price.pool, request.priority)
        )
        return _Case(pending, asked, ask, paused)

    async def _standings(self, cases: Sequence[_Case], capacities: dict[str, Capacity]) -> list[Standing]:
        """What the ledger says of each; of the paused it is not asked, and of none while it cannot answer."""
        asked = [case for case in cases if case.paused is None]
        try:
            known = await self._parts.budgets.reserve([case.ask for case in asked], capacities)
        except BudgetsUnavailable:
            return [None] * len(cases)
        self._parts.fallback.reset()
        by_case = dict(zip(map(id, asked), known, strict=True))
        return [by_case.get(id(case)) for case in cases]

    def _judge(self, case: _Case, standing: Standing, capacity: Capacity, first: Reply | None) -> None:
        """Set the case's records, and its verdict when it has one."""
        item, candidate = case.pending.candidate.item, case.pending.candidate
        if candidate.dead_letter is not None:
            case.records.append(self._parts.writer.dead_letter(candidate.dead_letter, case.id.encode()))
        match standing:
            case Repeated():
                case.records += self._repeats.of_another(item, first)
            case Redelivered():
                case.records += self._repeats.of_the_same(item, standing, first)
            case Paid(facts) | Refused(facts) if isinstance(item, Work) and case.asked is not None:
                grounds = evidence.of(case.asked, facts, capacity, self._rules)
                case.pending.attained_units = facts.attained_units
                verdict = admission.decide(case.asked, facts, capacity, self._rules)
                self._decide(case, item, _as_reserved(verdict, is_paid=isinstance(standing, Paid)), grounds)
            case Closed() if isinstance(item, Work):
                self._decide(case, item, admission.CANCELLED, {})
            case None if isinstance(item, Work) and case.asked is not None:
                self._unasked(case, item, case.asked)
            case _ if not isinstance(item, Work):
                case.records += self._parts.writer.refusal(item)

    def _unasked(self, case: _Case, work: Work, asked: Terms) -> None:
        if case.paused is not None:
            self._decide(case, work, admission.decide_paused(asked, self._rules), {"paused": case.paused})
        elif case.ask.closed:
            self._decide(case, work, admission.CANCELLED, {})
        else:
            verdict = self._parts.fallback.decide(work, asked)
            self._decide(case, work, verdict, {"degraded": True}, unreserved=True)

    def _decide(
        self, case: _Case, work: Work, verdict: Verdict, grounds: dict[str, Field], *, unreserved: bool = False
    ) -> None:
        if isinstance(verdict, Hold) and not self._may_hold(case.pending):
            grounds = {**grounds, "crammed": True}
            verdict = admission.decide_crammed(verdict, self._rules)
        case.verdict = verdict
        if not isinstance(verdict, Hold) or case.pending.held_since_s is None:
            case.records += self._parts.writer.apply(work, verdict, grounds, unreserved=unreserved)

    async def _finish(self, cases: Sequence[_Case]) -> None:
        """Let the ledger remember what ends here, before its answer is out."""
        endings = [
            Ending(case.id, msgspec.json.encode(case.verdict).decode())
            for case in cases
            if isinstance(case.verdict, Reject)
        ]
        if endings:
            try:
                await self._parts.budgets.finish(endings)
            except BudgetsUnavailable:
                _log.warning("endings_not_noted", ids=len(endings), effect="if read again, they are decided again")

    def _balances(self) -> list[Outgoing]:
        touched = self._parts.budgets.take_balances()
        return [] if touched is None else [self._parts.writer.journal.balances(touched)]

    def _close(self, cases: Sequence[_Case]) -> None:
        """Acknowledge what has ended here; the rest waits in memory."""
        now_s = self._parts.clock.mono_s()
        for case in cases:
            item, pending = case.pending.candidate.item, case.pending
            if isinstance(case.verdict, Hold) and isinstance(item, Work):
                pending.held_since_s = now_s if pending.held_since_s is None else pending.held_since_s
                pending.due_s = now_s + min(case.verdict.wait_s, _LOOK_AGAIN_S)
                self.holding.add((case.ask.pool, case.ask.lane, case.ask.tenant), pending)
            else:
                pending.done()
        metrics.HELD.set(self.holding.count)
        metrics.HELD_UNITS.set(self.holding.units)

    def _may_hold(self, pending: Pending) -> bool:
        since_s = pending.held_since_s
        hold_s = self._settings.streams.fair.hold_s
        return not self.holding.is_full and (since_s is None or self._parts.clock.mono_s() - since_s < hold_s)

    def _is_cancelled(self, pending: Pending) -> bool:
        item = pending.candidate.item
        return isinstance(item, Work) and self._parts.controls.is_cancelled(item.request.id, item.request.tenant)


def _as_reserved(verdict: Verdict, *, is_paid: bool) -> Verdict:
    """The ledger has the last word where the two differ, by the last digit of a sum."""
    if is_paid:
        return verdict if isinstance(verdict, Admit) else Admit()
    return Hold(0.0, Reason.FAIR_SHARE) if isinstance(verdict, Admit) else verdict
