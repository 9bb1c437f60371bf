"""The admission of one micro-batch: reserve, decide, send.  One Redis call and one broker wait serve them all."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from streams import metrics, rules
from streams.apply import Writer
from streams.away import Away
from streams.budgets import (
    Ask,
    Budgets,
    BudgetsUnavailable,
    Closed,
    Ending,
    New,
    Paid,
    Redelivered,
    Refused,
    Repeated,
    Standing,
)
from streams.cases import Case, answered_at, why_ended
from streams.control import Controls
from streams.fallback import Fallback
from streams.fleet import Fleet
from streams.holding import Holding, Pending
from streams.outbox import Outgoing, Sends
from streams.policy import admission, degrade, evidence
from streams.policy.admission import Defer, Hold, Reject
from streams.policy.sharing import Capacity
from streams.policy.verification import Refusal
from streams.recall import Recall
from streams.repeats import Repeats
from streams.sending import Sending
from streams.settings import StreamsSettings
from streams.tracing import Tracing
from streams.unnoted import Unnoted
from topics.clock import Clock
from topics.outcomes import Reason
from topics.records import Reply, Work

_LOOK_RECORDS = 200
"""Held requests asked about in one look.  Too small: they are slow to leave.  Too large: arrivals wait behind them."""
LOOK_AGAIN_S = 0.25
"""Longest until a held request is asked about again: what it waits for may come sooner than predicted."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What admission works with; one of each in a process."""

    settings: StreamsSettings
    clock: Clock
    budgets: Budgets
    writer: Writer
    outbox: Sends
    fleet: Fleet
    controls: Controls
    fallback: Fallback
    recall: Recall


class Admission:
    """Reserve (idempotent), send, acknowledge: a death between two of them is repeated and finds the traces."""

    def __init__(self, parts: Parts) -> None:
        """All parts are shared by the process's agents."""
        self._parts, self._settings = parts, parts.settings
        self._rules = rules.of_admission(parts.settings)
        self._repeats = Repeats(parts.settings, parts.writer)
        self.send = Sending(parts.settings, parts.outbox, parts.writer, parts.budgets, self._repeats).send
        self._unnoted = Unnoted(parts.budgets)
        self._away = Away(parts.controls)
        self._tracing = Tracing(parts.settings)
        self.holding = Holding(parts.settings.streams.fair.hold_records)
        self._seen_orders: object = None

    async def run(self, pendings: Sequence[Pending]) -> None:
        """Decide and send; returns when the broker has everything that does not wait in memory."""
        now_s = self._parts.clock.wall_s()
        self._tracing.begin(pendings, now_s)
        cases = [self._open(pending, now_s) for pending in pendings]
        pools = () if self._settings.streams.policy == "fifo" else {case.ask.pool for case in cases} - {""}
        capacities = {pool: self._parts.fleet.capacity(pool) for pool in pools}
        standings = await self._standings(cases, capacities)
        first = await self._repeats.first_answers(
            [place for case, standing in zip(cases, standings, strict=True) for place in answered_at(case, standing)]
        )
        for case, standing in zip(cases, standings, strict=True):
            self._judge(case, standing, capacities.get(case.ask.pool, Capacity()), first.get(case.id))
        await self._finish(cases, standings)
        await self.send([*(record for case in cases for record in self._records(case)), *self._balances()])
        self._close(cases)
        self._tracing.end(cases, now_s, self._parts.clock.wall_s())

    async def look(self) -> None:
        """Ask again for what waits in memory and is due, and for what was cancelled meanwhile."""
        cancelled: Sequence[Pending] = ()
        if (orders := self._parts.controls.cancel_orders) is not self._seen_orders:
            self._seen_orders = orders
            await self.end(self._away.take_cancelled(), admission.CANCELLED)
            cancelled = self.holding.take_all(self._is_cancelled)
        if taken := [*cancelled, *self.holding.take_due(self._parts.clock.mono_s(), _LOOK_RECORDS)]:
            await self.run(taken)

    async def put_back(self, works: Sequence[Work]) -> None:
        """Failed attempts whose time has come: to their lanes, unless an order keeps them waiting."""
        writer, controls, later_s = self._parts.writer, self._parts.controls, min(self._settings.topics.retry_delays_s)
        await self.send(
            [
                writer.lane(work)[0]
                if controls.paused_reason(work.request.tenant, work.price.pool, work.request.priority) is None
                else writer.retried(work, later_s)
                for work in works
            ]
        )

    async def end(self, works: Sequence[Work], verdict: Reject) -> None:
        """End work that waited in a topic and can go nowhere; waits for the ledger, which may hold its cost."""
        while works:
            try:
                firsts = await self._parts.budgets.finish(
                    [Ending(w.request.id, why_ended(verdict), verdict is admission.POOL_GONE) for w in works]
                )
            except BudgetsUnavailable:
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            ended = [work for work, is_first in zip(works, firsts, strict=True) if is_first]
            await self.send([record for work in ended for record in self._parts.writer.apply(work, verdict, {})])
            return

    def _open(self, pending: Pending, now_s: float) -> Case:
        item = pending.candidate.item
        if not isinstance(item, Work):
            return Case(pending, None, Ask(item.id, item.origin, item.reply.topic, item.tenant or "", closed=True))
        request, price, streams = item.request, item.price, self._settings.streams
        asked = admission.terms(
            request,
            price,
            now_s,
            max_deferral_s=streams.max_deferral_s,
            max_wait_s=streams.max_wait_s[request.priority],
            is_back=pending.is_back,
        )
        paused = self._parts.controls.paused_reason(request.tenant, price.pool, request.priority)
        is_cancelled = self._is_cancelled(pending)
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
            budget_wait_limit_s=admission.budget_wait_limit_s(asked, self._rules),
            is_back=asked.is_back,
            closed=is_cancelled,
            only_asks=paused is not None and not is_cancelled,
        )
        return Case(pending, asked, ask, now_s, paused)

    async def _standings(self, cases: Sequence[Case], capacities: dict[str, Capacity]) -> list[Standing | None]:
        """What the ledger says of each, or else the log; None of the others while the ledger is away."""
        await self._unnoted.note()
        budgets, recall = self._parts.budgets, self._parts.recall
        memory = budgets.memory
        await recall.look_up(cases, memory)
        try:
            known = await budgets.reserve([case.ask for case in cases], capacities, memory)
        except BudgetsUnavailable:
            await recall.look_up(cases, None)  # also what the ledger was believed to know
            for case in cases:
                self._decide_unasked(case)
            return [case.recalled for case in cases]
        self._parts.fallback.reset()
        return [case.known_as(standing) for case, standing in zip(cases, known, strict=True)]

    def _judge(self, case: Case, standing: Standing | None, capacity: Capacity, first: Reply | None) -> None:
        """Set the case's verdict, or the records that follow without one."""
        item, candidate = case.pending.candidate.item, case.pending.candidate
        match standing:
            case Repeated():
                case.records += self._repeats.of_another(item, first)
            case Redelivered() if self._repeats.is_on_its_way(standing, first):
                self._wait_silently(case)
            case Redelivered():
                case.records += self._repeats.of_the_same(item, standing, first, is_cancelled=case.ask.closed)
            case Paid() | Refused():
                case.judge(standing, capacity, self._rules)
            case Closed() if isinstance(item, Work):
                case.verdict = admission.CANCELLED
            case New() if case.asked is not None:
                case.verdict = admission.decide_paused(case.asked, self._rules)
                case.grounds = {"paused": case.paused, **evidence.of_terms(case.asked, self._rules)}
            case None:
                self._judge_unasked(case, first)
            case _ if isinstance(item, Refusal):
                case.records += self._parts.writer.refusal(item)
        if candidate.dead_letter is not None and not case.is_silent:
            case.records.append(self._parts.writer.dead_letter(candidate.dead_letter, case.id.encode()))
        self._cram(case)

    def _judge_unasked(self, case: Case, first: Reply | None) -> None:
        if first is not None or case.id in self._unnoted:  # another run of the same record ended it, or does so now
            case.verdict = None
        elif isinstance(case.pending.candidate.item, Refusal):
            self._unnoted.add(case.id)
            case.records += self._parts.writer.refusal(case.pending.candidate.item)

    def _cram(self, case: Case) -> None:
        """Let what may not wait here wait in a delay topic."""
        if not isinstance(case.verdict, Hold) or case.is_silent:
            return
        since_s, hold_s = case.pending.held_since_s, self._settings.streams.fair.hold_s
        is_over = since_s is not None and self._parts.clock.mono_s() - since_s >= hold_s
        if is_over or self.holding.is_full(case.group):
            case.verdict = admission.decide_crammed(case.verdict, self._rules)
            case.grounds = {**case.grounds, "crammed": True}

    def _decide_unasked(self, case: Case) -> None:
        """The ledger cannot be asked: the class's degrade mode decides."""
        item = case.pending.candidate.item
        if not isinstance(item, Work) or case.asked is None or case.recalled is not None:
            return
        case.grounds, case.unreserved = {"degraded": True, **evidence.of_terms(case.asked, self._rules)}, True
        if case.ask.closed or case.ask.only_asks:
            case.verdict = degrade.decide_stopped(self._rules.delays_s, is_cancelled=case.ask.closed)
            case.grounds["cancelled"] = case.ask.closed
        else:
            case.verdict, looked_at = self._parts.fallback.decide(item, case.asked)
            case.grounds |= looked_at

    def _wait_silently(self, case: Case) -> None:
        case.verdict, case.is_silent = Hold(LOOK_AGAIN_S, Reason.NONE), True

    def _records(self, case: Case) -> list[Outgoing]:
        """What a case puts on topics; a wait in memory is logged once."""
        item = case.pending.candidate.item
        is_old = isinstance(case.verdict, Hold) and case.pending.held_since_s is not None
        if case.verdict is None or case.is_silent or is_old or not isinstance(item, Work):
            return case.records
        grounds = case.take_grounds()
        return [*case.records, *self._parts.writer.apply(item, case.verdict, grounds, unreserved=case.unreserved)]

    async def _finish(self, cases: Sequence[Case], standings: Sequence[Standing | None]) -> None:
        """Let the ledger remember what ends here, before its answer is out; what another run ended is not answered."""
        ending = {
            case: why_ended(case.verdict)
            for case, standing in zip(cases, standings, strict=True)
            if isinstance(case.verdict, Reject) and not isinstance(standing, Closed)
        }
        try:
            firsts = await self._parts.budgets.finish(
                [Ending(case.id, why, also_reserved=False) for case, why in ending.items()]
            )
        except BudgetsUnavailable:
            for case, why in ending.items():
                if case.id in self._unnoted:
                    case.verdict = None
                else:
                    self._unnoted.add(case.id, why)
            return
        for case, is_first in zip(ending, firsts, strict=True):
            if not is_first:
                self._wait_silently(case)

    def _balances(self) -> list[Outgoing]:
        touched = self._parts.budgets.take_balances()
        return [self._parts.writer.journal.balances(touched)] if touched else []

    def _close(self, cases: Sequence[Case]) -> None:
        """Acknowledge what has ended here; the rest waits in memory."""
        now_s = self._parts.clock.mono_s()
        for case in cases:
            pending = case.pending
            if isinstance(case.verdict, Hold):
                pending.held_since_s = now_s if pending.held_since_s is None else pending.held_since_s
                pending.due_s = now_s + min(case.verdict.wait_s, LOOK_AGAIN_S)
                self.holding.add(case.group, pending)
                continue
            if isinstance(case.verdict, Defer) and isinstance(pending.candidate.item, Work):
                self._away.add(pending.candidate.item)
            else:
                self._away.discard(case.id)
            pending.done()
        metrics.HELD.set(self.holding.count)
        metrics.HELD_UNITS.set(self.holding.units)

    def _is_cancelled(self, pending: Pending) -> bool:
        item = pending.candidate.item
        return isinstance(item, Work) and self._parts.controls.is_cancelled(item.request.id, item.request.tenant)
