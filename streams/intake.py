"""Records to candidates: decode, verify, price.  No effect but counting."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from streams import metrics
from streams.policy import admission, cost, length, priority, verification
from streams.policy.verification import Refusal, Rules
from streams.settings import StreamsSettings
from topics import codec
from topics.clock import Clock
from topics.errors import DecodeError
from topics.records import DeadLetter, Length, Origin, Price, Priority, Request, Work


@dataclass(frozen=True, slots=True)
class Landed:
    """A record as the broker gave it."""

    origin: Origin
    value: bytes | None
    key: bytes | None
    headers: Iterable[tuple[str, bytes]]
    timestamp_s: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """What admission decides about: priced work, or a refusal that only needs its answer."""

    item: Work | Refusal
    dead_letter: DeadLetter | None = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self.item.request.id if isinstance(self.item, Work) else self.item.id


class Pricing:
    """Verifies and prices.  Keeps each pool's recent costs; one writer, the event loop."""

    def __init__(
        self, settings: StreamsSettings, clock: Clock, reply_partitions: Callable[[], Mapping[str, int]], by: str
    ) -> None:
        """`reply_partitions` gives the partition counts of existing topics, as fresh as the caller keeps them."""
        self._settings, self._clock, self._by = settings, clock, by
        self._reply_partitions = reply_partitions
        self._recent = {pool: length.RecentCosts() for pool in settings.pools}
        section = settings.streams
        self._caps = priority.Caps(
            section.tenant_max_priority, section.user_tier_max_priority, section.source_max_priority
        )

    def read(self, landed: Landed, claimed_priority: Priority, claimed_length: Length) -> Candidate:
        """Decode, verify and price one landing record."""
        claims = codec.read_headers(landed.headers)
        rules = self._rules()
        try:
            event = codec.decode_event(landed.value, claims, landed.key, landed.origin, landed.timestamp_s)
        except DecodeError as error:
            fault = verification.Fault(error.reason, error.detail)
            refusal = verification.refuse(landed.origin, landed.timestamp_s, claims, rules, fault)
            metrics.DEAD_LETTERS.labels(error.reason).inc()
            return Candidate(refusal, self._dead_letter(landed, error, refusal.id))
        verified = verification.verify(event, claimed_priority, claimed_length, rules, self._clock.wall_s())
        return Candidate(verified) if isinstance(verified, Refusal) else self._price(verified)

    def _price(self, request: Request) -> Candidate:
        model = self._settings.models[request.model]
        section = self._settings.streams
        output = cost.expected_output_tokens(request.max_tokens, request.choices, model)
        units = cost.units(request.prompt_tokens, output, model)
        recent = self._recent[model.pool]
        recent.add(units)
        threshold = recent.quantile_units(section.long_cost_quantile) or section.long_cost_units
        declared = None if request.max_tokens is None else request.max_tokens * request.choices
        actual = length.classify(declared, units, long_max_tokens=section.long_max_tokens, threshold_units=threshold)
        allowed = priority.capped(request, self._caps)
        if actual is not request.length_claim:
            metrics.CORRECTED.labels("length").inc()
        if allowed is not request.priority:
            metrics.CORRECTED.labels("priority").inc()
            request = msgspec.structs.replace(request, priority=allowed)
        price = Price(pool=model.pool, length=actual, expected_output_tokens=output, cost_units=round(units, 3))
        if not admission.fits_deadline(request, price, self._clock.wall_s()):
            return Candidate(_too_late(request))
        return Candidate(Work(request=request, price=price))

    def _rules(self) -> Rules:
        settings = self._settings
        return Rules(
            models=settings.models,
            default_model=settings.default_model,
            reply_allowed=tuple(settings.topic(pattern) for pattern in settings.topics.reply_topics),
            reply_default=settings.topic(settings.topics.reply_topics[0]),
            reply_partitions=self._reply_partitions(),
            max_body_bytes=settings.topics.max_record_bytes,
        )

    def _dead_letter(self, landed: Landed, error: DecodeError, identity: str) -> DeadLetter:
        return DeadLetter(
            topic=landed.origin.topic,
            partition=landed.origin.partition,
            offset=landed.origin.offset,
            reason=error.reason,
            detail=error.detail,
            sha256=codec.digest(landed.value),
            size_bytes=len(landed.value or b""),
            at_s=self._clock.wall_s(),
            by=self._by,
            id=identity,
        )


def _too_late(request: Request) -> Refusal:
    reject = admission.DEADLINE_UNREACHABLE
    return Refusal(
        request.id,
        request.reply,
        request.origin,
        reject.outcome,
        reject.reason,
        reject.detail,
        request.arrived_s,
        request.tenant,
        request.model,
    )
