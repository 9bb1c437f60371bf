"""From an attempt's end to a finished offset: letters acknowledged, claim marked done, offset finished.

In this order, so that whoever takes over after a crash finds the answer in the log and gives no second one.
"""

import asyncio
from collections.abc import Callable

from confluent_kafka import KafkaException

from gpu_consumers.answering import CANCELLED, NO_TOKENS, Ending, Used, Writer
from gpu_consumers.assignment import Done, Entry, Fetched
from gpu_consumers.claims import Claims, ClaimsUnavailable
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.metrics import Metrics, Spans
from gpu_consumers.posting import Poster, Settlement
from gpu_consumers.unclaimed import Unclaimed
from gpu_consumers.worklist import Worklist
from topics.clock import Clock
from topics.errors import DecodeError
from topics.outcomes import Outcome
from topics.records import Control, Reply, Tokens

_CONGESTED_S = 0.1


class Settler:
    """Settles entries in batches.  Touched only by the loop.

    Invariant: an entry's offset is finished once, and only after its letters are acknowledged.
    """

    def __init__(
        self, poster: Poster, writer: Writer, claims: Claims, done: Mailbox[Done], clock: Clock, metrics: Metrics
    ) -> None:
        self._poster, self._writer, self._claims, self._done = poster, writer, claims, done
        self._clock, self._metrics = clock, metrics
        self._unsure: Worklist[Settlement] = Worklist()
        self._settling: set[str] = set()
        self.on_fenced: Callable[[Entry], None] = lambda _: None
        poster.on_fenced, poster.on_lost = self._fenced, self._lost
        self.unclaimed: Unclaimed | None = None
        """Set where work goes on while Redis is away; otherwise its answers wait."""
        self.finished_units = 0.0
        """Cost of all that was finished here so far."""
        self.moved_s = clock.mono_s()

    @property
    def open(self) -> int:
        """Entries that ended and are not settled."""
        return len(self._settling)

    def is_settling(self, request_id: str) -> bool:
        """Tell whether the id's attempt has ended and only acknowledgements are awaited."""
        return request_id in self._settling

    def answer(self, entry: Entry, ending: Ending) -> None:
        """Give the terminal answer of an attempt whose id this process claimed."""
        reply = self._writer.reply(entry, ending, self._clock.wall_s())
        self._settling.add(entry.id)
        self._go_on(Settlement(entry, reply, ending.engine_s))

    def cancel(self, entry: Entry, order: Control, ending: Ending = CANCELLED) -> None:
        """Answer work that was ordered to end, and tell the decision."""
        now_s = self._clock.wall_s()
        where = "buffered" if entry.started_s is None else "running"
        self._metrics.cancels.labels(where).inc()
        self._settling.add(entry.id)
        reply = self._writer.reply(entry, ending, now_s)
        self._go_on(Settlement(entry, reply, beside=self._writer.cancel_letter(entry.work, order, where, now_s)))

    def note_answered(self, entry: Entry, reply: Reply) -> None:
        """The answer of a taken-over id lies in the log: settle its cost and give no second one."""
        self._settling.add(entry.id)
        self._poster.post_usage(Settlement(entry, reply), reply)

    def retry(self, entry: Entry, tokens: Tokens) -> None:
        """Have another attempt made later; `tokens` is what this one used."""
        self._settling.add(entry.id)
        self._poster.post_retry(Settlement(entry), self._partly(entry, tokens))

    def note_aborted(self, entry: Entry, tokens: Tokens) -> None:
        """Tell what an attempt used that ended without an end: its claim is lost or given back."""
        if tokens != NO_TOKENS:
            self._poster.post_aborted(entry, self._partly(entry, tokens))

    def note_fenced(self, entry: Entry, tokens: Tokens) -> None:
        """An attempt's claim was lost: whoever holds it now answers."""
        self._metrics.fenced.inc()
        self.note_aborted(entry, tokens)

    def give_up_unreadable(self, fetched: Fetched, error: DecodeError) -> None:
        """Dead-letter a record that has no id; its offset is finished once that is acknowledged."""
        self._poster.post_unreadable(fetched, error, lambda: self.finish(fetched))

    def finish(self, fetched: Fetched) -> None:
        """Nothing is left to do for this offset."""
        self._done.put(Done(fetched.assignment, fetched.offset))
        fetched.assignment.finish_one()

    async def chunk(self, entry: Entry, data: bytes) -> None:
        """Send a streamed piece, waiting only while the client's queue is full; a fenced worker stays silent."""
        if self._claims.holds(entry.id):
            self._poster.post_chunk(entry, data)
        while self._poster.is_congested:  # noqa: ASYNC110 - an outage of the broker, looked at ten times a second
            await asyncio.sleep(_CONGESTED_S)

    async def mark(self, retry_s: float, on_room: Callable[[], None]) -> None:
        """Mark claims done or give them back, then finish the offsets; one call for all that gathered."""
        while True:
            batch = await self._poster.posted.take()
            answered = [(s.entry.id, s.place) for s in batch if s.reply is not None]
            try:
                await self._claims.done(answered)
                await self._claims.release([s.entry.id for s in batch if s.reply is None])
            except ClaimsUnavailable:
                ended = [(s.entry.id, s.place if s.reply is not None else None) for s in batch]
                if self.unclaimed is None or not self.unclaimed.owe(ended):
                    self._poster.posted.put_back(batch)
                    await asyncio.sleep(retry_s)
                    continue
            self.moved_s = self._clock.mono_s()
            for settlement in batch:
                self._close(settlement)
            on_room()

    async def make_sure(self, retry_s: float) -> None:
        """Hold claims until their answers can no longer be under way; a lost one drops the answer."""
        while True:
            batch = await self._unsure.take()
            try:
                unclaimed = await self._hold(batch)
                first = await self._first_answers(unclaimed)
            except (ClaimsUnavailable, KafkaException):
                self._unsure.put_back(batch)
                await asyncio.sleep(retry_s)
                continue
            for settlement in batch:
                if not self._claims.holds(settlement.entry.id):
                    self._lost(settlement)
                elif settlement in unclaimed:
                    self._answer_unclaimed(settlement, first.get(settlement.entry.id))
                else:
                    self._go_on(settlement)

    async def _hold(self, batch: list[Settlement]) -> list[Settlement]:
        """Hold their claims; returns those that have none, or began without one.  Raises ClaimsUnavailable."""
        try:
            await self._claims.hold([s.entry.id for s in batch])
        except ClaimsUnavailable:
            if self.unclaimed is None:
                raise
            return batch
        return [s for s in batch if s.entry.is_unclaimed and self._claims.holds(s.entry.id)]

    async def _first_answers(self, unclaimed: list[Settlement]) -> dict[str, Reply]:
        return {} if self.unclaimed is None else await self.unclaimed.first_answers([s.entry for s in unclaimed])

    def _answer_unclaimed(self, settlement: Settlement, first: Reply | None) -> None:
        if first is not None:
            self._metrics.fenced.inc()
            self.note_aborted(settlement.entry, _used(settlement))
            self.note_answered(settlement.entry, first)
        elif settlement.reply is not None:
            self._poster.post_answer(settlement, settlement.reply)

    def _lost(self, settlement: Settlement) -> None:
        """Its claim was lost before anything of it was sent, its usage included."""
        self.note_aborted(settlement.entry, _used(settlement))
        self._fenced(settlement)

    def _fenced(self, settlement: Settlement) -> None:
        self._metrics.fenced.inc()
        self._settling.discard(settlement.entry.id)
        self.on_fenced(settlement.entry)

    def _partly(self, entry: Entry, tokens: Tokens) -> Used:
        return Used(
            Outcome.FAILED, tokens, entry.work.attempt, self._clock.wall_s(), entry.started_s, None, partial=True
        )

    def _go_on(self, settlement: Settlement) -> None:
        if not self._claims.is_sure(settlement.entry.id):
            self._unsure.add(settlement)
        elif settlement.reply is not None:
            self._poster.post_answer(settlement, settlement.reply)

    def _close(self, settlement: Settlement) -> None:
        entry, reply = settlement.entry, settlement.reply
        self._settling.discard(entry.id)
        self.finish(entry.fetched)
        self.finished_units += entry.ask.cost_units
        if reply is not None and reply.timing is not None and reply.timing.finished_s is not None:
            self._metrics.answered(reply, _spans(entry, reply.timing.finished_s))


def _used(settlement: Settlement) -> Tokens:
    if settlement.entry.started_s is None:  # the answer of another attempt, or of none
        return NO_TOKENS
    return (settlement.reply and settlement.reply.tokens) or NO_TOKENS


def _spans(entry: Entry, finished_s: float) -> Spans:
    arrived_s = entry.work.request.arrived_s
    return Spans(
        queue_s=None if entry.started_s is None else max(0.0, entry.started_s - entry.fetched.timestamp_s),
        first_token_s=None if entry.first_token_s is None else max(0.0, entry.first_token_s - arrived_s),
        whole_s=max(0.0, finished_s - arrived_s),
    )
