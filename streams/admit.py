"""The admission of one micro-batch: reserve, decide, send.  One Redis call and one broker wait serve them all."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from confluent_kafka import KafkaException
from structlog import get_logger

from streams.apply import Writer
from streams.budgets import Ask, Budgets, Redelivered, Repeated, Standing
from streams.intake import Candidate
from streams.outbox import Outbox, Outgoing
from streams.policy import admission
from streams.policy.admission import Admit, Never, Paid, Short
from streams.policy.verification import Refusal
from streams.settings import StreamsSettings
from topics import answers
from topics.clock import Clock
from topics.errors import ConfigError
from topics.records import Reply, Work

_log = get_logger()
_RETRY_S = 0.5


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
        first = await self._first_answers(candidates, asks, standings)
        records: list[Outgoing] = []
        for candidate, ask, standing in zip(candidates, asks, standings, strict=True):
            if candidate.dead_letter is not None:
                records.append(self._writer.dead_letter(candidate.dead_letter, candidate.id.encode()))
            records += self._outcome(candidate, standing, ask.patience_s, first.get(candidate.id))
        await self.send(records)

    async def send(self, records: Sequence[Outgoing]) -> None:
        """Send; an answer that its reply topic will never take is dead-lettered by reference.

        Raises ConfigError when a topic of our own refuses a record: going on would lose it.
        """
        undelivered = await self._outbox.deliver(records)
        if undelivered:
            letters = [self._writer.unanswerable(lost.record, lost.reason) for lost in undelivered]
            if any(letter is None for letter in letters):
                raise ConfigError(
                    [f"topic {lost.record.topic} takes no records: {lost.reason}" for lost in undelivered]
                )
            await self.send([letter for letter in letters if letter is not None])

    def _ask(self, candidate: Candidate, now_s: float) -> Ask:
        item = candidate.item
        if isinstance(item, Refusal):
            return Ask(item.id, item.origin, item.reply.topic, 0.0, "", "", 0.0, closed=True)
        request = item.request
        patience_s = admission.patience_s(request, self._settings.streams.max_deferral_s, now_s)
        price, topic = item.price, request.reply.topic
        return Ask(request.id, request.origin, topic, price.cost_units, price.pool, request.tenant, patience_s)

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
        if standing.state == "rejected":
            verdict = admission.decide(standing.why, 0.0, ()) if standing.why else admission.REFUSED_EARLIER
            return self._writer.apply(item, verdict)
        return self._writer.apply(item, Admit())

    def _repeat(self, item: Work | Refusal, first: Reply | None) -> list[Outgoing]:
        if isinstance(item, Refusal):
            return self._writer.refusal(item, repeat=True)
        if first is not None:
            return [self._writer.repeated(item, first)]
        return [self._writer.deferred(item, min(self._settings.topics.defer_delays_s))]

    async def _first_answers(
        self, candidates: Sequence[Candidate], asks: Sequence[Ask], standings: Sequence[Standing]
    ) -> dict[str, Reply]:
        """Look up the answers of ids that were seen before and may have one: after a crash, or asked twice."""
        wanted: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for candidate, ask, standing in zip(candidates, asks, standings, strict=True):
            if isinstance(standing, Repeated) and standing.may_be_answered:
                wanted[standing.reply_topic].append((candidate.id, standing.at_s))
            elif isinstance(standing, Redelivered) and standing.state == "rejected":
                wanted[ask.reply_topic].append((candidate.id, standing.at_s))
        found: dict[str, Reply] = {}
        for topic, seen in wanted.items():
            found |= await self._find({i for i, _ in seen}, topic, min(at_s for _, at_s in seen))
        return found

    async def _find(self, ids: set[str], topic: str, since_s: float) -> dict[str, Reply]:
        while True:
            try:
                return await asyncio.to_thread(answers.find, self._settings, ids, topic, since_s)
            except KafkaException as error:
                _log.warning("answers_not_read", topic=topic, error=error.args[0].str(), doing="the batch waits")
                await asyncio.sleep(_RETRY_S)
