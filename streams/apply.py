"""Decisions to records: what each candidate's verdict puts on which topic.  Builds, does not send."""

from collections.abc import Mapping

import msgspec

from streams import metrics
from streams.fleet import Fleet
from streams.outbox import Outgoing
from streams.policy.admission import Admit, Defer, Reject, Verdict
from streams.policy.verification import Refusal
from streams.settings import StreamsSettings
from topics import catalog, codec
from topics.clock import Clock
from topics.outcomes import Reason
from topics.records import DeadLetter, Decision, Length, Reply, ReplyAddress, Tier, Timing, Work

POLICY_VERSION = "1"
COST_HEADER = "rampmeter_cost"


class Writer:
    """Builds the outgoing records of one process."""

    def __init__(self, settings: StreamsSettings, clock: Clock, fleet: Fleet, by: str) -> None:
        """`by` names this worker in decisions."""
        self._settings, self._clock, self._fleet, self._by = settings, clock, fleet, by
        self._hash = settings.short_hash()
        self._decisions = settings.topic("decisions")
        self._dead_letters = settings.topic("dead_letters")
        self._partitions: Mapping[str, int] = {pool: spec.lane_partitions for pool, spec in settings.pools.items()}
        self._pooled = settings.streams.policy == "fifo"

    def apply(self, work: Work, verdict: Verdict) -> list[Outgoing]:
        """The records that carry out a verdict, its entry in the decision log last."""
        match verdict:
            case Admit():
                admitted = work
                if work.admitted_s is None:
                    admitted = msgspec.structs.replace(work, admitted_s=self._clock.wall_s())
                    metrics.ADMITTED_UNITS.labels(work.price.pool).inc(work.price.cost_units)
                effect = self.lane(admitted)
            case Defer(delay_s):
                effect = self.deferred(work, delay_s)
            case Reject():
                effect = self._rejection(work, verdict)
        return [effect, self._decision(work, verdict)]

    def lane(self, work: Work) -> Outgoing:
        """Put work on the lane of its class, on the partition that placement chooses."""
        tier, length = Tier(work.request.priority), work.price.length
        if self._pooled:
            tier, length = Tier.MEDIUM, Length.SHORT
        return self.on_lane(work, codec.encode(work), tier, length)

    def on_lane(self, work: Work, value: bytes, tier: Tier, length: Length) -> Outgoing:
        """The same for a given tier and ready bytes."""
        topic = catalog.lane(self._settings, work.price.pool, tier, length)
        partition = self._fleet.place(topic, self._partitions[work.price.pool], work.price.cost_units)
        headers = ((COST_HEADER, f"{work.price.cost_units:.3f}".encode()),)
        return Outgoing(topic, work.request.id.encode(), value, headers, partition)

    def deferred(self, work: Work, delay_s: int) -> Outgoing:
        """Let work come back after a fixed delay."""
        later = msgspec.structs.replace(work, deferrals=work.deferrals + 1)
        topic = catalog.deferred(self._settings, delay_s)
        return Outgoing(topic, work.request.tenant.encode(), codec.encode(later))

    def refusal(self, refusal: Refusal, *, repeat: bool = False) -> list[Outgoing]:
        """Answer what never became work."""
        reply = Reply(
            id=refusal.id,
            outcome=refusal.outcome,
            reason=refusal.reason,
            detail=refusal.detail,
            tenant=refusal.tenant,
            model=refusal.model,
            repeat=repeat,
            origin=refusal.origin,
            timing=Timing(arrived_s=refusal.arrived_s, finished_s=self._clock.wall_s()),
        )
        decision = Decision(
            id=refusal.id,
            stage="admission",
            verdict="reject",
            reason=refusal.reason,
            at_s=self._clock.wall_s(),
            by=self._by,
            inputs={"policy_version": POLICY_VERSION},
            settings_hash=self._hash,
        )
        metrics.VERDICTS.labels("reject", refusal.reason, "", "").inc()
        return [_answer(reply, refusal.reply, None), self._log(decision)]

    def dead_letter(self, letter: DeadLetter, key: bytes | None) -> Outgoing:
        """Refer to a record that could not be used."""
        return Outgoing(self._dead_letters, key or b"", codec.encode(letter))

    def unanswerable(self, record: Outgoing, why: str) -> Outgoing | None:
        """Refer to an answer that its topic refused for good; None when `record` is no answer."""
        if not any(name == codec.ID_HEADER for name, _ in record.headers):
            return None
        letter = DeadLetter(
            topic=record.topic,
            partition=-1 if record.partition is None else record.partition,
            offset=-1,
            reason=Reason.REPLY_TOPIC_MISSING,
            detail=why,
            sha256=codec.digest(record.value),
            size_bytes=len(record.value),
            at_s=self._clock.wall_s(),
            by=self._by,
            id=record.key.decode(),
        )
        metrics.DEAD_LETTERS.labels(Reason.REPLY_TOPIC_MISSING).inc()
        return self.dead_letter(letter, record.key)

    def repeated(self, work: Work, first: Reply) -> Outgoing:
        """Give the first answer again to one who asked again."""
        copy = msgspec.structs.replace(first, repeat=True, origin=work.request.origin)
        return _answer(copy, work.request.reply, work.request.traceparent)

    def promotion(self, work: Work) -> Outgoing:
        """The log entry of a promotion."""
        inputs = {"age_s": round(self._clock.wall_s() - (work.admitted_s or work.request.arrived_s), 3)}
        return self._log(
            Decision(
                id=work.request.id, stage="promotion", verdict="promote", reason="waited", at_s=self._clock.wall_s(),
                by=self._by, inputs={**inputs, "policy_version": POLICY_VERSION}, settings_hash=self._hash,
            )
        )  # fmt: skip

    def _rejection(self, work: Work, reject: Reject) -> Outgoing:
        request = work.request
        reply = Reply(
            id=request.id,
            outcome=reject.outcome,
            reason=reject.reason,
            detail=reject.detail,
            retry_after_s=reject.retry_after_s,
            tenant=request.tenant,
            model=request.model,
            priority=request.priority,
            length=work.price.length,
            pool=work.price.pool,
            cost_units=work.price.cost_units,
            timing=Timing(arrived_s=request.arrived_s, finished_s=self._clock.wall_s()),
            origin=request.origin,
        )
        return _answer(reply, request.reply, request.traceparent)

    def _decision(self, work: Work, verdict: Verdict) -> Outgoing:
        request, price = work.request, work.price
        word, reason = _words(verdict)
        metrics.VERDICTS.labels(word, reason, request.priority, price.length).inc()
        inputs = {
            "policy_version": POLICY_VERSION,
            "tenant": request.tenant,
            "model": request.model,
            "priority": request.priority.value,
            "length": price.length.value,
            "length_claim": request.length_claim.value,
            "prompt_tokens": request.prompt_tokens,
            "max_tokens": request.max_tokens,
            "expected_output_tokens": price.expected_output_tokens,
            "cost_units": price.cost_units,
            "arrived_s": request.arrived_s,
            "deadline_s": request.deadline_s,
            "deferrals": work.deferrals,
            "delay_s": verdict.delay_s if isinstance(verdict, Defer) else None,
            "retry_after_s": verdict.retry_after_s if isinstance(verdict, Reject) else None,
        }
        return self._log(
            Decision(
                id=request.id, stage="admission", verdict=word, reason=reason, at_s=self._clock.wall_s(), by=self._by,
                inputs=inputs, settings_hash=self._hash,
            )
        )  # fmt: skip

    def _log(self, decision: Decision) -> Outgoing:
        return Outgoing(self._decisions, decision.id.encode(), codec.encode(decision))


def _words(verdict: Verdict) -> tuple[str, str]:
    match verdict:
        case Admit():
            return "admit", Reason.NONE
        case Defer(_, reason):
            return "defer", reason
        case Reject(_, reason):
            return "reject", reason


def _answer(reply: Reply, address: ReplyAddress, traceparent: str | None) -> Outgoing:
    headers = codec.answer_headers(reply.id, address.correlation_b64, address.correlation_header, traceparent)
    return Outgoing(address.topic, reply.id.encode(), codec.encode(reply), tuple(headers), address.partition)
