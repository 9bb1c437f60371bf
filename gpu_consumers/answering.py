"""What is written about a request: its reply, chunks, usage, retry and dead letter.  Pure."""

from dataclasses import dataclass

import msgspec

from gpu_consumers.assignment import Entry, Fetched
from gpu_consumers.outbox import Letter
from topics import catalog, codec
from topics.errors import DecodeError
from topics.outcomes import Outcome, Reason
from topics.records import Chunk, DeadLetter, Reply, Timing, Tokens, Usage, Work
from topics.settings import Settings

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


EXPIRED = Ending(Outcome.EXPIRED, Reason.DEADLINE_PASSED, "its deadline came before it could run")


class Writer:
    """Builds letters for one consumer under fixed settings."""

    def __init__(self, settings: Settings, consumer_id: str) -> None:
        self._settings = settings
        self._consumer_id = consumer_id
        self._usage_topic = settings.topic("usage")
        self._dead_topic = settings.topic("dead_letters")
        self.default_reply_topic = settings.topic(catalog.default_reply_name(settings))
        self.max_bytes = settings.topics.max_record_bytes

    def reply(self, entry: Entry, ending: Ending, now_s: float) -> Reply:
        """The terminal answer."""
        request, price = entry.work.request, entry.work.price
        timing = Timing(
            arrived_s=request.arrived_s,
            admitted_s=entry.work.admitted_s,
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
            cost_units=self.cost_units(request.model, ending.tokens),
            tokens=ending.tokens,
            timing=timing,
            attempt=entry.work.attempt,
            body=msgspec.Raw(ending.body),
            origin=request.origin,
        )

    def cost_units(self, model: str, tokens: Tokens) -> float | None:
        """What the tokens cost at the model's price; None for a model without one."""
        price = self._settings.models.get(model)
        if price is None:
            return None
        return price.coefficient * (
            price.input_units_per_token * tokens.prompt + price.output_units_per_token * tokens.output
        )

    def reply_letter(self, work: Work, reply: Reply, fallback: int) -> Letter:
        """Address it: as asked; then without the partition; then to the default topic."""
        address = work.request.reply
        topic = address.topic if fallback < 2 else self.default_reply_topic
        return Letter(
            topic,
            work.request.id.encode(),
            codec.encode(reply),
            self._headers(work),
            address.partition if fallback == 0 else None,
        )

    def chunk_letter(self, entry: Entry, data: bytes) -> Letter:
        """The next streamed piece."""
        work = entry.work
        chunk = Chunk(id=work.request.id, seq=entry.chunks, data=msgspec.Raw(data))
        address = work.request.reply
        key = work.request.id.encode()
        return Letter(address.topic, key, codec.encode(chunk), self._headers(work), address.partition)

    def usage_letter(self, work: Work, reply: Reply, engine_s: float | None) -> Letter:
        """What settles the reservation."""
        request, price = work.request, work.price
        usage = Usage(
            id=request.id,
            tenant=request.tenant,
            pool=price.pool,
            model=request.model,
            priority=request.priority,
            length=price.length,
            outcome=reply.outcome,
            attempt=reply.attempt,
            reserved_units=price.cost_units,
            tokens=reply.tokens or NO_TOKENS,
            finished_s=(reply.timing and reply.timing.finished_s) or request.arrived_s,
            consumer=self._consumer_id,
            engine_s=engine_s,
        )
        return Letter(self._usage_topic, request.tenant.encode(), codec.encode(usage))

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
        return [
            *codec.answer_headers(request.id, address.correlation_b64, address.correlation_header, request.traceparent)
        ]


def read_work(value: bytes | None) -> Work:
    """Decode a lane record.  Raises DecodeError, whose text names the place of the fault and never the content."""
    if not value:
        raise DecodeError(Reason.EMPTY_VALUE, "the lane record has no value")
    try:
        return codec.decode_work(value)
    except msgspec.ValidationError as error:
        raise DecodeError(Reason.WRONG_SHAPE, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise DecodeError(Reason.UNDECODABLE, "the lane record is not JSON in UTF-8") from None
