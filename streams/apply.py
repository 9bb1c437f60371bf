"""Decisions to records: what each candidate's verdict puts on which topic.  Builds, does not send."""

from collections.abc import Mapping
from functools import cache

import msgspec

from streams import metrics
from streams.fleet import Fleet
from streams.journal import Journal
from streams.outbox import Outgoing
from streams.policy.admission import Admit, Defer, Hold, Reject, Verdict
from streams.policy.evidence import Field, of_spot
from streams.policy.placement import Spot
from streams.policy.verification import Refusal
from streams.settings import StreamsSettings
from topics import catalog, codec, trace_context
from topics.clock import Clock
from topics.outcomes import Reason
from topics.records import DeadLetter, Length, Reply, ReplyAddress, Tier, Work
from topics.timing import Timing, waits
from topics.trace_context import TraceContext

COST_HEADER = "rampmeter_cost"
_placements = cache(metrics.PLACEMENTS.labels)


class Writer:
    """Builds the outgoing records of one process."""

    def __init__(self, settings: StreamsSettings, clock: Clock, fleet: Fleet, by: str) -> None:
        """`by` names this worker in decisions."""
        self._settings, self._clock, self._fleet, self._by = settings, clock, fleet, by
        self.journal = Journal(settings, clock, by)
        self._dead_letters = settings.topic("dead_letters")
        self._partitions: Mapping[str, int] = {pool: spec.lane_partitions for pool, spec in settings.pools.items()}
        self._pooled = settings.streams.policy == "fifo"

    def apply(
        self, work: Work, verdict: Verdict, evidence: Mapping[str, Field], *, unreserved: bool = False
    ) -> list[Outgoing]:
        """The records that carry out a verdict, its entry in the decision log last.

        `unreserved`: no budget holds the cost, so its end charges it in full.
        """
        if isinstance(verdict, Admit):
            admitted = self._admitted(work, verdict.wait_estimate_s, verdict.position, unreserved=unreserved)
            lane, spot = self.lane(admitted)
            return [lane, self.journal.admission(work, verdict, {**evidence, **of_spot(spot)})]
        log = self.journal.admission(work, verdict, evidence)
        match verdict:
            case Hold():
                return [log]
            case Defer(delay_s):
                return [self.deferred(work, delay_s), log]
            case Reject():
                return [self._rejection(work, verdict), log]

    def lane(self, work: Work) -> tuple[Outgoing, Spot]:
        """Put work on the lane of its class, on the partition that placement chooses."""
        tier, length = Tier(work.request.priority), work.price.length
        if self._pooled:
            tier, length = Tier.MEDIUM, Length.SHORT
        return self.on_lane(work, codec.encode(work), tier, length)

    def on_lane(self, work: Work, value: bytes, tier: Tier, length: Length) -> tuple[Outgoing, Spot]:
        """The same for a given tier and ready bytes."""
        topic = catalog.lane(self._settings, work.price.pool, tier, length)
        spot = self._fleet.place(topic, self._partitions[work.price.pool], work.price.cost_units)
        _placements(spot.case).inc()
        headers = ((COST_HEADER, f"{work.price.cost_units:.3f}".encode()),)
        return Outgoing(topic, work.request.id.encode(), value, headers, spot.partition), spot

    def deferred(self, work: Work, delay_s: int) -> Outgoing:
        """Let work come back after a fixed delay."""
        later = msgspec.structs.replace(work, deferrals=work.deferrals + 1)
        topic = catalog.deferred(self._settings, delay_s)
        return Outgoing(topic, work.request.tenant.encode(), codec.encode(later))

    def retried(self, work: Work, delay_s: int) -> Outgoing:
        """Let a failed attempt wait on."""
        topic = catalog.retries(self._settings, delay_s)
        return Outgoing(topic, work.request.tenant.encode(), codec.encode(work))

    def refusal(self, refusal: Refusal, *, repeat: bool = False) -> list[Outgoing]:
        """Answer what never became work."""
        timing = Timing(arrived_s=refusal.arrived_s, finished_s=self._clock.wall_s())
        reply = Reply(
            id=refusal.id,
            outcome=refusal.outcome,
            reason=refusal.reason,
            detail=refusal.detail,
            tenant=refusal.tenant,
            model=refusal.model,
            repeat=repeat,
            origin=refusal.origin,
            timing=timing,
            waits=waits(timing),
        )
        return [_answer(reply, refusal.reply, refusal.trace), self.journal.refusal(refusal)]

    def dead_letter(self, letter: DeadLetter, key: bytes | None) -> Outgoing:
        """Refer to a record that could not be used."""
        return Outgoing(self._dead_letters, key or b"", codec.encode(letter))

    def unanswerable(self, record: Outgoing, why: str) -> Outgoing | None:
        """Refer to an answer that its topic refused for good; None when `record` is no answer."""
        if not record.is_answer:
            return None
        letter = DeadLetter(
            topic=record.topic,
            partition=-1 if record.partition is None else record.partition,
            offset=-1,
            reason=Reason.REPLY_TOPIC_MISSING,
            detail=why,
            sha256=codec.digest(record.value),
            size_bytes=len(record.value or b""),
            at_s=self._clock.wall_s(),
            by=self._by,
            id=record.key.decode(),
        )
        metrics.DEAD_LETTERS.labels(Reason.REPLY_TOPIC_MISSING).inc()
        return self.dead_letter(letter, record.key)

    def repeated(self, work: Work, first: Reply) -> Outgoing:
        """Give the first answer again to one who asked again."""
        copy = msgspec.structs.replace(first, repeat=True, origin=work.request.origin)
        return _answer(copy, work.request.reply, trace_context.of(work.request))

    def promoted(self, work: Work, value: bytes, length: Length, inputs: Mapping[str, Field]) -> list[Outgoing]:
        """A copy in the aged tier, and its log entry."""
        copy, spot = self.on_lane(work, value, Tier.AGED, length)
        return [copy, self.journal.promotion(work, {**inputs, **of_spot(spot)})]

    def _admitted(self, work: Work, wait_estimate_s: float | None, position: int | None, *, unreserved: bool) -> Work:
        """Work that goes to a lane for the first time, or again after a crash: its time stays the first."""
        if work.admitted_s is not None:
            return work
        metrics.ADMITTED_UNITS.labels(work.price.pool).inc(work.price.cost_units)
        return msgspec.structs.replace(
            work,
            admitted_s=self._clock.wall_s(),
            wait_estimate_s=wait_estimate_s,
            position=position,
            unreserved=unreserved,
        )

    def _rejection(self, work: Work, reject: Reject) -> Outgoing:
        request = work.request
        timing = Timing(arrived_s=request.arrived_s, finished_s=self._clock.wall_s())
        reply = Reply(
            id=request.id,
            outcome=reject.outcome,
            reason=reject.reason,
            detail=reject.detail,
            retry_after_s=reject.retry_after_s,
            wait_estimate_s=reject.wait_estimate_s,
            position=reject.position,
            tenant=request.tenant,
            model=request.model,
            priority=request.priority,
            length=work.price.length,
            pool=work.price.pool,
            cost_units=work.price.cost_units,
            timing=timing,
            waits=waits(timing),
            origin=request.origin,
        )
        return _answer(reply, request.reply, trace_context.of(request))


def _answer(reply: Reply, address: ReplyAddress, trace: TraceContext | None) -> Outgoing:
    headers = codec.answer_headers(reply.id, address.correlation_b64, address.correlation_header, trace)
    return Outgoing(address.topic, reply.id.encode(), codec.encode(reply), tuple(headers), address.partition)
