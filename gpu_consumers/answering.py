"""What is written about a request: its reply, chunks, usage, retry and dead letter.  Pure."""

from dataclasses import dataclass

import msgspec

from gpu_consumers.assignment import Entry, Fetched
from gpu_consumers.outbox import Letter
from gpu_consumers.policy.fallback import AS_ASKED, Place, Route
from topics import catalog, codec, trace_context
from topics.errors import DecodeError
from topics.outcomes import Outcome, Reason
from topics.records import Chunk, Control, DeadLetter, Decision, Reply, Tokens, Usage, Work
from topics.settings import Settings
from topics.timing import Timing, waits

NO_TOKENS = Tokens(prompt=0, output=0)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended."""

    outcome: Outcome
    reason: Reason = Reason.NONE
    detail: str | None = None
    tokens: Tokens = NO_TOKENS
    body: bytes = b"null"
    engine_s: float | None = None


@dataclass(frozen=True, slots=True)
class Used:
    """What the usage record of an attempt says beside its work."""

    outcome: Outcome
    tokens: Tokens
    attempt: int
    finished_s: float
    started_s: float | None = None
    engine_s: float | None = None
    partial: bool = False

    @property
    def service_s(self) -> float | None:
        """From its start to its end; None for what never ran."""
        return None if self.started_s is None else max(0.0, self.finished_s - self.started_s)


def used_by(reply: Reply, arrived_s: float, engine_s: float | None) -> Used:
    """What the attempt of a terminal answer used."""
    timing = reply.timing or Timing(arrived_s=arrived_s)
    finished_s = arrived_s if timing.finished_s is None else timing.finished_s
    tokens = reply.tokens or NO_TOKENS
    return Used(reply.outcome, tokens, reply.attempt, finished_s, timing.started_s, engine_s)


EXPIRED = Ending(
    Outcome.EXPIRED,
    Reason.DEADLINE_PASSED,
    "its deadline, or the longest wait for its length, came before it could run",
)
CANCELLED = Ending(Outcome.CANCELLED, Reason.CANCELLED, "cancelled before it ran")


def crash_loop(takeovers: int) -> Ending:
    """The end of work that may have ended all its owners."""
    return Ending(Outcome.FAILED, Reason.CRASH_LOOP, f"{takeovers} consumers were lost while they had it")


class Writer:
    """Builds letters for one consumer under fixed settings."""

    def __init__(self, settings: Settings, consumer_id: str) -> None:
        self._settings = settings
        self._consumer_id = consumer_id
        self._usage_topic = settings.topic("usage")
        self._dead_topic = settings.topic("dead_letters")
        self._decision_topic = settings.topic("decisions")
        self._settings_hash = settings.short_hash()
        self.default_reply_topic = settings.topic(catalog.default_reply_name(settings))
        self.max_bytes = settings.topics.max_record_bytes

    def reply(self, entry: Entry, ending: Ending, now_s: float) -> Reply:
        """The terminal answer."""
        request, price = entry.work.request, entry.work.price
        timing = Timing(
            arrived_s=request.arrived_s,
            admitted_s=entry.work.admitted_s,
            lane_s=entry.fetched.timestamp_s,
            started_s=entry.started_s,
            first_token_s=entry.first_token_s,
            finished_s=now_s,
        )
        return Reply(
            id=request.id,
            outcome=ending.outcome,
            reason=ending.reason,
            detail=ending.detail,
            tenant=request.tenant,
            model=request.model,
            priority=request.priority,
            length=price.length,
            pool=price.pool,
            cost_units=self.cost_units(entry.work, ending.tokens),
            tokens=ending.tokens,
            timing=timing,
            waits=waits(timing),
            attempt=entry.work.attempt,
            consumer=self._consumer_id,
            chunks=entry.chunks if request.stream else None,
            wait_estimate_s=entry.work.wait_estimate_s,
            position=entry.work.position,
            body=msgspec.Raw(ending.body),
            origin=request.origin,
        )

    def cost_units(self, work: Work, tokens: Tokens) -> float | None:
        """What the tokens cost at the price of admission; None for a model without one."""
        model = self._settings.models.get(work.request.model)
        if model is None:
            return None
        return model.units(tokens.prompt, tokens.output, cached=tokens.cached, coefficient=work.price.coefficient)

    def reply_letter(self, work: Work, reply: Reply, route: Route = AS_ASKED) -> Letter:
        """Address the terminal answer."""
        address = work.request.reply
        return Letter(
            self.default_reply_topic if route.place is Place.DEFAULT else address.topic,
            work.request.id.encode(),
            codec.encode(reply),
            self._headers(work),
            address.partition if route.place is Place.ASKED else None,
            route.is_alone,
        )

    def chunk_letter(self, entry: Entry, data: bytes) -> Letter:
        """The next streamed piece."""
        work = entry.work
        chunk = Chunk(
            id=work.request.id,
            seq=entry.chunks,
            data=msgspec.Raw(data),
            attempt=work.attempt,
            consumer=self._consumer_id,
        )
        address = work.request.reply
        key = work.request.id.encode()
        if entry.headers is None:
            entry.headers = self._headers(work)
        return Letter(address.topic, key, codec.encode(chunk), entry.headers, address.partition)

    def usage_letter(self, work: Work, used: Used) -> Letter:
        """What settles the reservation."""
        request, price, tokens, service_s = work.request, work.price, used.tokens, used.service_s
        usage = Usage(
            id=request.id,
            tenant=request.tenant,
            pool=price.pool,
            model=request.model,
            priority=request.priority,
            length=price.length,
            outcome=used.outcome,
            attempt=used.attempt,
            reserved_units=0.0 if work.unreserved else price.cost_units,
            tokens=tokens,
            finished_s=used.finished_s,
            consumer=self._consumer_id,
            engine_s=used.engine_s,
            coefficient=price.coefficient,
            template=request.template,
            expected_prompt_tokens=request.prompt_tokens,
            expected_output_tokens=price.expected_output_tokens,
            service_s=service_s,
            waited_s=None if used.started_s is None else max(0.0, used.started_s - request.arrived_s),
            kv_token_s=None if service_s is None else tokens.kv_token_s(service_s),
            expected_kv_token_s=price.kv_token_s,
            partial=used.partial,
        )
        trace = trace_context.of(request)
        headers: list[tuple[str, str | bytes | None]] | None = None if trace is None else [*trace.headers()]
        return Letter(self._usage_topic, request.tenant.encode(), codec.encode(usage), headers)

    def cancel_letter(self, work: Work, order: Control, where: str, now_s: float) -> Letter:
        """The decision to end a request since someone ordered it."""
        request = work.request
        decision = Decision(
            id=request.id,
            stage="control",
            verdict="cancel",
            reason=Reason.CANCELLED,
            at_s=now_s,
            by=self._consumer_id,
            inputs={"attempt": work.attempt, "where": where, "tenant": request.tenant, "order": order.id},
            settings_hash=self._settings_hash,
        )
        return Letter(self._decision_topic, request.id.encode(), codec.encode(decision))

    def retry_letter(self, work: Work) -> Letter:
        """The next attempt, later the more there were."""
        delays_s = self._settings.topics.retry_delays_s
        delay_s = delays_s[min(work.attempt, len(delays_s)) - 1]
        again = msgspec.structs.replace(work, attempt=work.attempt + 1)
        return Letter(catalog.retries(self._settings, delay_s), work.request.tenant.encode(), codec.encode(again))

    def dead_letter(self, fetched: Fetched, reason: Reason, detail: str, now_s: float, id_: str | None) -> Letter:
        """A reference to the lane record: where it lies and why it was given up."""
        letter = DeadLetter(
            topic=fetched.assignment.topic,
            partition=fetched.assignment.partition,
            offset=fetched.offset,
            reason=reason,
            detail=detail,
            sha256=codec.digest(fetched.value),
            size_bytes=len(fetched.value or b""),
            at_s=now_s,
            by=self._consumer_id,
            id=id_,
        )
        return Letter(self._dead_topic, fetched.key or b"", codec.encode(letter))

    def _headers(self, work: Work) -> list[tuple[str, str | bytes | None]]:
        request = work.request
        address = request.reply
        trace = trace_context.of(request)
        return [*codec.answer_headers(request.id, address.correlation_b64, address.correlation_header, trace)]


def read_work(value: bytes | None) -> Work:
    """Decode a lane record.  Raises DecodeError, whose text names the place of the fault and never the content."""
    if not value:
        raise DecodeError(Reason.EMPTY_VALUE, "the lane record has no value")
    try:
        return codec.decode_work(value)
    except msgspec.ValidationError as error:
        raise DecodeError(Reason.WRONG_SHAPE, str(error)) from None
    except codec.UNREADABLE:
        raise DecodeError(Reason.UNDECODABLE, "the lane record is not JSON in UTF-8") from None
