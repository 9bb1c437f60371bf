"""The admission of one micro-batch: reserve, decide, send.  One Redis call and one broker wait serve them all."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeGuard

from structlog import get_logger

from streams.apply import Writer, lost_budget
from streams.budgets import Ask, Budgets, Redelivered, Repeated, Standing
from streams.intake import Candidate
from streams.outbox import Outbox, Outgoing, Undelivered
from streams.policy import admission
from streams.policy.admission import Admit, Never, Paid, Short
from streams.policy.verification import Refusal
from streams.settings import StreamsSettings
from topics import answers
from topics.clock import Clock
from topics.records import Reply, Work

_log = get_logger()


class Admission:
    """Carries a batch of candidates to its end.

    Order of effects: the reservation (idempotent per id and origin), then all sends, then the caller acknowledges.
    A death between any two of them repeats the batch, and the repetition finds its traces.
    """

    def __init__(
        self, settings: StreamsSettings, clock: Clock, budgets: Budgets, writer: Writer, outbox: Outbox
    ) -> None:
        """All parts are shared by the process's agents."""
        self._settings, self._clock = settings, clock
        self._budgets, self._writer, self._outbox = budgets, writer, outbox

    async def run(self, candidates: Sequence[Candidate]) -> None:
        """Decide and send; returns when the broker has everything."""
        now_s = self._clock.wall_s()
        asks = [self._ask(candidate, now_s) for candidate in candidates]
        standings = await self._budgets.reserve(asks)
        first = await self._first_answers(candidates, standings)
        records: list[Outgoing] = []
        for candidate, ask, standing in zip(candidates, asks, standings, strict=True):
            if candidate.dead_letter is not None:
                records.append(self._writer.dead_letter(candidate.dead_letter, candidate.id.encode()))
            records += self._outcome(candidate, standing, ask.patience_s, first.get(candidate.id))
        await self.send(records)

    async def send(self, records: Sequence[Outgoing]) -> None:
        """Send, and say so when the broker will never take one; its request stays visible to `audit` as unanswered."""
        for undelivered in await self._outbox.deliver(records):
            _log_undelivered(undelivered)

    def _ask(self, candidate: Candidate, now_s: float) -> Ask:
        item = candidate.item
        if isinstance(item, Refusal):
            return Ask(item.id, item.origin, 0.0, "", "", 0.0, closed=True)
        request = item.request
        patience_s = admission.patience_s(request, self._settings.streams.max_deferral_s, now_s)
        return Ask(request.id, request.origin, item.price.cost_units, item.price.pool, request.tenant, patience_s)

    def _outcome(
        self, candidate: Candidate, standing: Standing, patience_s: float, first: Reply | None
    ) -> list[Outgoing]:
        item = candidate.item
        match standing:
            case Repeated():
                return self._repeat(item, first)
            case Redelivered():
                return self._again(item, standing, first)
            case Paid() | Short() | Never() if isinstance(item, Work):
                verdict = admission.decide(standing, patience_s, self._settings.topics.defer_delays_s)
                return self._writer.apply(item, verdict)
        return self._writer.refusal(item) if isinstance(item, Refusal) else []

    def _again(self, item: Work | Refusal, standing: Redelivered, first: Reply | None) -> list[Outgoing]:
        """Carry on where an earlier run of the same record stopped.  A second copy on a lane is caught by its claim."""
        if standing.state == "settled" or first is not None:
            return []
        if isinstance(item, Refusal):  # if it was reserved, under other settings, the work on the lane gets the answer
            return self._writer.refusal(item) if standing.state == "rejected" else []
        return self._writer.apply(item, lost_budget() if standing.state == "rejected" else Admit())

    def _repeat(self, item: Work | Refusal, first: Reply | None) -> list[Outgoing]:
        if isinstance(item, Refusal):
            return self._writer.refusal(item, repeat=True)
        if first is not None:
            return [self._writer.repeated(item, first)]
        return [self._writer.deferred(item, min(self._settings.topics.defer_delays_s))]

    async def _first_answers(self, candidates: Sequence[Candidate], standings: Sequence[Standing]) -> dict[str, Reply]:
        """Look up the answers of ids that were seen before and may have one: after a crash, or asked twice."""
        wanted: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for candidate, standing in zip(candidates, standings, strict=True):
            if _may_be_answered(standing):
                item = candidate.item
                topic = item.request.reply.topic if isinstance(item, Work) else item.reply.topic
                wanted[topic].append((candidate.id, standing.at_s))
        found: dict[str, Reply] = {}
        for topic, seen in wanted.items():
            since_s = min(at_s for _, at_s in seen)
            found |= await asyncio.to_thread(answers.find, self._settings, {i for i, _ in seen}, topic, since_s)
        return found


def _may_be_answered(standing: Standing) -> TypeGuard[Repeated | Redelivered]:
    return isinstance(standing, Repeated) or (isinstance(standing, Redelivered) and standing.state == "rejected")


def _log_undelivered(undelivered: Undelivered) -> None:
    record = undelivered.record
    _log.error("undeliverable", topic=record.topic, partition=record.partition, reason=undelivered.reason)
