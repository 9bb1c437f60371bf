"""Sends what an attempt's end calls for, until the broker has it: reply, usage, retry, dead letter, chunks.

A reply that cannot lie where it should falls back, see `policy/fallback.py`, and a dead letter tells so.  It never
holds up its lane.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
import structlog
from confluent_kafka import KafkaException
from opentelemetry.trace import Span

from gpu_consumers.answering import Used, Writer, used_by
from gpu_consumers.assignment import Entry, Fetched
from gpu_consumers.claims import Claims, ClaimsUnavailable, Place
from gpu_consumers.metrics import Metrics
from gpu_consumers.outbox import Ack, Letter, Outbox
from gpu_consumers.parcels import Carrier, Item
from gpu_consumers.policy import fallback
from gpu_consumers.settings import GpuSettings
from gpu_consumers.tracing import Tracing
from gpu_consumers.worklist import Worklist
from topics import answers, delivery, tracing
from topics.clock import Clock
from topics.errors import DecodeError
from topics.outcomes import Outcome, Reason
from topics.records import Reply, Work, no_body

log = structlog.get_logger()

RESEND_S = 1.0
_DEAD = frozenset({Reason.ATTEMPTS_EXHAUSTED, Reason.CRASH_LOOP, Reason.REPLY_TOO_LARGE})
_NEXT = {
    fallback.Place.ASKED: "it goes there without its response",
    fallback.Place.ANY_PARTITION: "it goes to any partition",
    fallback.Place.DEFAULT: "it goes to the default reply topic",
    fallback.Place.NOWHERE: "it could be written nowhere",
}


@dataclass(slots=True, eq=False)
class Settlement:
    """The letters that end one entry.  Without a reply it is a retry, and the claim is given back."""

    entry: Entry
    reply: Reply | None = None
    engine_s: float | None = None
    beside: Letter | None = None
    """What is sent together with the reply: the decision that led to it."""
    open_letters: int = 0
    place: Place = field(default_factory=Place)
    is_fenced: bool = False
    """Its claim was lost before its letters arrived: none of them is sent again."""
    route: fallback.Route = fallback.AS_ASKED
    span: Span | None = None
    """Of the sending of its reply, where OpenTelemetry is told."""
    work: Work = field(init=False)
    """As its letters are to be addressed: they continue the span."""

    def __post_init__(self) -> None:
        self.work = self.entry.work

    def tell(self, span: Span) -> None:
        """Its letters are told of in this span, and continue it."""
        self.span, self.work = span, tracing.continued(self.work, span)


@dataclass(slots=True, eq=False)
class _Sent:
    settlement: Settlement
    letter: Letter
    is_reply: bool


@dataclass(frozen=True, slots=True)
class Post:
    """`carrier` takes what ends entries, `outbox` all else."""

    outbox: Outbox
    carrier: Carrier
    claims: Claims


class Poster:
    """Touched only by the loop.

    Invariant: a settlement ends once: in `posted` when all letters are acknowledged, else in `on_fenced` or `on_lost`.
    """

    def __init__(self, settings: GpuSettings, writer: Writer, post: Post, clock: Clock, metrics: Metrics) -> None:
        self._settings, self._writer, self._tracing = settings, writer, Tracing(settings)
        self._outbox, self._carrier, self._claims = post.outbox, post.carrier, post.claims
        self._clock, self._metrics = clock, metrics
        self.on_fenced: Callable[[Settlement], None] = lambda _: None
        self.on_lost: Callable[[Settlement], None] = lambda _: None
        """Its claim was lost before anything of it was sent."""
        self._resend: Worklist[_Sent] = Worklist()
        self.posted: Worklist[Settlement] = Worklist()
        """Read by the settler."""

    def post_answer(self, settlement: Settlement, reply: Reply) -> None:
        """Send the reply and its usage; on its partition it is behind its chunks."""
        topic = settlement.entry.work.request.reply.topic
        if (span := self._tracing.answered(settlement.entry, reply, topic, self._clock.wall_s())) is not None:
            settlement.tell(span)
        letter = self._writer.reply_letter(settlement.work, reply)
        if len(letter.value) > self._writer.max_bytes:
            problem = f"the reply has {len(letter.value)} bytes, allowed are {self._writer.max_bytes}"
            reply = settlement.reply = _shortened(reply, problem)
            letter = self._writer.reply_letter(settlement.work, reply)
        letters = [self._usage_letter(settlement, reply)]
        if settlement.beside is not None:
            letters.append(settlement.beside)
        if reply.reason in _DEAD:
            letters.append(self._dead_letter(settlement, reply.reason, reply.detail or ""))
        self._post(settlement, letter, *letters)

    def post_usage(self, settlement: Settlement, reply: Reply) -> None:
        """Send what the reply cost."""
        self._post(settlement, None, self._usage_letter(settlement, reply))

    def post_retry(self, settlement: Settlement, used: Used) -> None:
        """Send the work to a retries topic, and what its attempt used."""
        self._metrics.retries.inc()
        work = settlement.entry.work
        self._tracing.cut_short(settlement.entry, used)
        self._post(settlement, None, self._writer.retry_letter(work), self._writer.usage_letter(work, used))

    def post_aborted(self, entry: Entry, used: Used) -> None:
        """Tell what an attempt used whose end is another's to tell; a lost one is charged to nobody."""
        self._tracing.cut_short(entry, used)
        self._outbox.send(self._writer.usage_letter(entry.work, used), None)

    @property
    def is_congested(self) -> bool:
        """The broker takes no more for now."""
        return self._outbox.is_congested

    @property
    def unsent(self) -> int:
        """What the broker has not answered yet, in letters, and in entries where those go together."""
        return self._outbox.unsent + self._carrier.unsent

    def post_chunk(self, entry: Entry, data: bytes) -> None:
        """Send a streamed piece.  Nobody waits for its acknowledgement, which would cost more than the piece.

        The idempotent producer keeps the order of a partition; one that fails shows as a gap before the reply's count.
        """
        letter = self._writer.chunk_letter(entry, data)
        entry.chunks += 1
        if self._carrier.awaits_chunks:
            entry.open_chunks += 1
            self._outbox.send(letter, lambda _: self._note_chunk(entry))
        else:
            self._outbox.send(letter, None)

    def _note_chunk(self, entry: Entry) -> None:
        entry.open_chunks -= 1

    def post_unreadable(self, fetched: Fetched, error: DecodeError, on_posted: Callable[[], None]) -> None:
        """Send a record that no one can read to the dead letters."""
        letter = self._writer.dead_letter(fetched, error.reason, error.detail, self._clock.wall_s(), None)
        self._metrics.dead_letters.labels(error.reason.value).inc()
        log.warning("dead_letter", reason=error.reason.value, topic=fetched.assignment.topic, offset=fetched.offset)

        def on_ack(ack: Ack) -> None:
            if ack.error is None:
                on_posted()
            else:
                asyncio.get_running_loop().call_later(RESEND_S, self._outbox.send, letter, on_ack)

        self._outbox.send(letter, on_ack)

    async def run(self) -> None:
        """Send again what has an unknown fate.

        A reply may lie in the log all the same, so look there first; and its claim may have ended meanwhile, so that
        another answers: only who still holds it goes on, an ending's usage included.
        """
        while True:
            batch = await self._resend.take()
            log.warning("send_again", letters=len(batch))
            await asyncio.sleep(RESEND_S)
            try:
                found = await self._look_up([sent for sent in batch if sent.is_reply])
                await self._hold({sent.settlement.entry.id for sent in batch} - found)
            except (KafkaException, ClaimsUnavailable):
                self._resend.put_back(batch)
                continue
            for sent in batch:
                if sent.is_reply and sent.settlement.entry.id in found:
                    self._acknowledged(sent.settlement)
                elif self._may_go_on(sent.settlement):
                    self._outbox.send(sent.letter, partial(self._on_ack, sent))

    async def _hold(self, ids: set[str]) -> None:
        try:
            await self._claims.hold(list(ids))
        except ClaimsUnavailable:
            if not self._claims.goes_without:
                raise

    def _may_go_on(self, settlement: Settlement) -> bool:
        """Whether its claim is still ours, without which nothing but a retry is sent."""
        if settlement.reply is None or (not settlement.is_fenced and self._claims.holds(settlement.entry.id)):
            return True
        if not settlement.is_fenced:
            settlement.is_fenced = True
            self.on_fenced(settlement)
        return False

    async def _look_up(self, replies: list[_Sent]) -> set[str]:
        found: set[str] = set()
        for topic in {sent.letter.topic for sent in replies}:
            entries = [sent.settlement.entry for sent in replies if sent.letter.topic == topic]
            since_s = min(entry.fetched.timestamp_s for entry in entries)
            ids = [entry.id for entry in entries]
            found.update(await asyncio.to_thread(answers.find, self._settings, ids, topic, since_s))
        return found

    def _post(self, settlement: Settlement, reply: Letter | None, *letters: Letter) -> None:
        sent = [_Sent(settlement, letter, is_reply=False) for letter in letters]
        sent += [] if reply is None else [_Sent(settlement, reply, is_reply=True)]
        settlement.open_letters += len(sent)
        if reply is not None and self._must_hold_again(settlement):
            self._resend.add(sent.pop())
        items = [Item(one.letter, partial(self._on_ack, one), one.is_reply) for one in sent]
        on_lost = None if settlement.reply is None else partial(self.on_lost, settlement)
        self._carrier.carry(settlement.entry, items, on_lost)

    def _must_hold_again(self, settlement: Settlement) -> bool:
        """Whether a try elsewhere comes after one that took long."""
        is_again = settlement.route != fallback.AS_ASKED
        return is_again and not (self._carrier.holds_claims or self._claims.is_sure(settlement.entry.id))

    def _usage_letter(self, settlement: Settlement, reply: Reply) -> Letter:
        work = settlement.work
        return self._writer.usage_letter(work, used_by(reply, work.request.arrived_s, settlement.engine_s))

    def _dead_letter(self, settlement: Settlement, reason: Reason, detail: str) -> Letter:
        entry = settlement.entry
        self._metrics.dead_letters.labels(reason.value).inc()
        return self._writer.dead_letter(entry.fetched, reason, detail, self._clock.wall_s(), entry.id)

    def _on_ack(self, sent: _Sent, ack: Ack) -> None:
        if ack.error is None:
            if sent.is_reply:
                sent.settlement.place = Place(ack.topic, ack.partition, ack.offset)
            self._acknowledged(sent.settlement)
        elif sent.is_reply and ack.error in delivery.FINAL:
            self._fall_back(sent, delivery.refusal(ack.error))
            self._acknowledged(sent.settlement)
        else:
            self._resend.add(sent)

    def _acknowledged(self, settlement: Settlement) -> None:
        settlement.open_letters -= 1
        if settlement.open_letters == 0:
            if settlement.span is not None:
                is_nowhere = settlement.route.place is fallback.Place.NOWHERE
                tracing.end(settlement.span, self._clock.wall_s(), error="nowhere" if is_nowhere else None)
            self.posted.add(settlement)

    def _fall_back(self, sent: _Sent, reason: Reason) -> None:
        settlement, letter = sent.settlement, sent.letter
        entry, reply, before = settlement.entry, settlement.reply, settlement.route
        route = settlement.route = fallback.after(before, reason)
        assert reply is not None  # noqa: S101 - what falls back is a reply
        if (route.place, route.is_short) == (before.place, before.is_short):
            self._post(settlement, self._writer.reply_letter(settlement.work, reply, route))
            return
        where = letter.topic if letter.partition is None else f"{letter.topic}[{letter.partition}]"
        problem = f"{where} did not take the answer ({reason}); {_NEXT[route.place]}"
        self._metrics.reply_fallbacks.inc()
        log.warning("reply_fallback", id=entry.id, topic=letter.topic, reason=reason.value, to=route.place.value)
        dead = self._dead_letter(settlement, reason, problem)
        if route.is_short and not before.is_short:
            reply = _shortened(reply, problem)
        elif reply.reason is Reason.NONE:
            reply = msgspec.structs.replace(reply, reason=reason, detail=problem)
        settlement.reply = reply
        is_nowhere = route.place is fallback.Place.NOWHERE
        self._post(settlement, None if is_nowhere else self._writer.reply_letter(settlement.work, reply, route), dead)


def _shortened(reply: Reply, problem: str) -> Reply:
    return msgspec.structs.replace(
        reply, outcome=Outcome.FAILED, reason=Reason.REPLY_TOO_LARGE, detail=problem, body=no_body()
    )
