"""Records to candidates: decode, prove, verify, price.  No effect but counting."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from streams import metrics
from streams.estimates import Estimates
from streams.identity import Identities, Rulebook
from streams.policy import admission, cost, history, length, verification
from streams.policy.verification import Fault, Refusal, Rules
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
        self,
        settings: StreamsSettings,
        clock: Clock,
        reply_partitions: Callable[[], Mapping[str, int]],
        by: str,
        estimates: Estimates,
        identities: Identities,
    ) -> None:
        """`reply_partitions` gives the partition counts of existing topics, as fresh as the caller keeps them."""
        self._settings, self._clock, self._by = settings, clock, by
        self._reply_partitions, self._rulebook = reply_partitions, Rulebook(settings)
        self._counts: Mapping[str, int] = {}
        self._known_rules = self._rulebook.rules(self._counts)
        self._estimates, self._identities = estimates, identities
        self._recent = {pool: length.RecentCosts() for pool in settings.pools}

    def read(
        self,
        landed: Landed,
        claimed_priority: Priority,
        claimed_length: Length,
        landing_tenant: str | None = None,
    ) -> Candidate:
        """Decode, prove, verify and price one landing record; `landing_tenant` is whose topic it was on."""
        claims = codec.read_headers(landed.headers)
        rules, now_s, value = self._rules(), self._clock.wall_s(), landed.value or b""
        try:
            event = codec.decode_event(landed.value, claims, landed.key, landed.origin, landed.timestamp_s)
        except DecodeError as error:
            believed = self._identities.believed(claims, value, landing_tenant, now_s, landed.timestamp_s)
            believed = replace(believed, id=None)  # whose id it is, the part that cannot be read might have said
            fault = Fault(error.reason, error.detail)
            refusal = verification.refuse(landed.origin, landed.timestamp_s, believed, rules, fault)
            metrics.DEAD_LETTERS.labels(error.reason).inc()
            return Candidate(refusal, self._dead_letter(landed, error, refusal.id))
        proven = self._identities.check(
            event.claims, value, landing_tenant, now_s, claimed_priority, landed.timestamp_s
        )
        if isinstance(proven, Fault):
            return Candidate(verification.refuse(landed.origin, landed.timestamp_s, event.claims, rules, proven))
        if proven is not event.claims:
            event = replace(event, claims=proven)
        verified = verification.verify(event, claimed_priority, claimed_length, rules, now_s)
        if isinstance(verified, Refusal):
            return Candidate(verified)
        if verified.priority is not verification.claimed(proven, claimed_priority):
            metrics.CORRECTED.labels("priority").inc()
        return self._price(verified, now_s)

    def _price(self, request: Request, now_s: float) -> Candidate:
        model = self._settings.models[request.model]
        if request.choices != 1:
            request = msgspec.structs.replace(request, template=history.template(request))
        known = self._estimates.of(request.tenant, request.model, request.template)
        expected = cost.expect(request, model, known, self._estimates.coefficient(request.model))
        actual = self._length(request, expected, model.pool)
        if actual is not request.length_claim:
            metrics.CORRECTED.labels("length").inc()
        price = Price(
            pool=model.pool,
            length=actual,
            expected_output_tokens=expected.output_tokens,
            cost_units=round(expected.units, 3),
            coefficient=expected.coefficient,
            kv_token_s=round(expected.kv_token_s, 3),
            service_s=expected.service_s,
        )
        if not admission.fits_deadline(request, price, now_s):
            return Candidate(_too_late(request))
        return Candidate(Work(request=request, price=price))

    def _length(self, request: Request, expected: cost.Expected, pool: str) -> Length:
        section, recent = self._settings.streams, self._recent[pool]
        recent.add(expected.units)
        limits = length.Limits(
            section.long_max_tokens,
            recent.quantile_units(section.long_cost_quantile) or section.long_cost_units,
            section.history.long_service_s,
        )
        declared = None if request.max_tokens is None else request.max_tokens * request.choices
        evidence = length.Evidence(declared, expected.units, expected.service_s)
        return length.classify(section.length_mode, evidence, limits)

    def _rules(self) -> Rules:
        counts = self._reply_partitions()
        if counts is not self._counts:
            self._counts, self._known_rules = counts, self._rulebook.rules(counts)
        return self._known_rules

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
