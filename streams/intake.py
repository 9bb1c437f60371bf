"""Records to candidates: decode, prove, verify, price.  No effect but counting."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from streams import metrics, rules
from streams.estimates import Estimates
from streams.identity import Identities, Rulebook
from streams.policy import admission, cost, evidence, history, length, pricing, verification
from streams.policy.cost import Expected
from streams.policy.evidence import Field
from streams.policy.verification import Fault, Refusal, Rules
from streams.settings import StreamsSettings
from topics import codec, interfaces, trace_context
from topics.catalog import Landing
from topics.clock import Clock
from topics.errors import DecodeError
from topics.records import DeadLetter, Length, Origin, Priority, Request, Work


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
    grounds: Mapping[str, Field] = field(default_factory=dict)
    """What its price followed from beside the record and the settings, for the decision log; empty if it was priced
    earlier."""

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
        now_s, spot = (
            self._clock.wall_s(),
            Landing(landed.origin.topic, claimed_priority, claimed_length, landing_tenant),
        )
        metrics.RECEIVED.labels(spot.priority, spot.length).inc()
        verified, unreadable = verify(landed, spot, self._rules(), self._identities, now_s)
        if isinstance(verified, Request):
            return self._price(verified, now_s)
        if unreadable is None:
            return Candidate(verified)
        metrics.DEAD_LETTERS.labels(unreadable.reason).inc()
        return Candidate(verified, self._dead_letter(landed, unreadable, verified.id))

    def _price(self, request: Request, now_s: float) -> Candidate:
        model, recent = self._settings.models[request.model], self._recent
        known = self._estimates.of(request.tenant, request.model, request.template)
        expected = cost.expect(request, model, known, self._estimates.coefficient(request.model))
        recent[model.pool].add(expected.units)
        section = self._settings.streams
        long_units = recent[model.pool].quantile_units(section.long_cost_quantile) or section.long_cost_units
        grounds = {"seen_s": now_s, **evidence.of_price(known, long_units)}
        item = priced(request, expected, self._settings, long_units, now_s)
        if isinstance(item, Refusal):
            learned = {"coefficient": expected.coefficient, "service_s": expected.service_s}
            return Candidate(replace(item, grounds={**grounds, **learned}))
        if item.price.length is not request.length_claim:
            metrics.CORRECTED.labels("length").inc()
        return Candidate(item, grounds=grounds)

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


def verify(
    landed: Landed, spot: Landing, rules: Rules, identities: Identities, now_s: float
) -> tuple[Request | Refusal, DecodeError | None]:
    """Decode, prove and verify one record of a landing topic; also why it is refused, when nobody can read it."""
    claims, value = codec.read_headers(landed.headers), landed.value or b""
    metrics.BY_INTERFACE.labels(interfaces.of(claims.interface)).inc()
    seen = {"seen_s": now_s}
    try:
        event = codec.decode_event(landed.value, claims, landed.key, landed.origin, landed.timestamp_s)
    except DecodeError as error:
        believed = identities.believed(claims, value, spot.tenant, now_s, landed.timestamp_s)
        believed = replace(believed, id=None)  # whose id it is, the part that cannot be read might have said
        fault = Fault(error.reason, error.detail)
        refusal = verification.refuse(landed.origin, landed.timestamp_s, believed, rules, fault)
        return replace(refusal, grounds=seen), error
    proven = identities.check(event.claims, value, spot.tenant, now_s, spot.priority, landed.timestamp_s)
    if isinstance(proven, Fault):
        refusal = verification.refuse(landed.origin, landed.timestamp_s, event.claims, rules, proven)
        return replace(refusal, grounds=seen), None
    if proven is not event.claims:
        event = replace(event, claims=proven)
    verified = verification.verify(event, spot.priority, spot.length, rules, now_s)
    if isinstance(verified, Refusal):
        return replace(verified, grounds=seen), None
    if verified.priority is not verification.claimed(proven, spot.priority):
        metrics.CORRECTED.labels("priority").inc()
    if verified.choices != 1:
        verified = msgspec.structs.replace(verified, template=history.template(verified))
    return verified, None


def priced(
    request: Request, expected: Expected, settings: StreamsSettings, long_units: float, now_s: float
) -> Work | Refusal:
    """Work at its price, or the refusal of what could not meet its deadline if it ran at once."""
    pool = settings.models[request.model].pool
    price = pricing.decide(request, expected, pool, rules.of_pricing(settings.streams), long_units)
    return Work(request=request, price=price) if admission.fits_deadline(request, price, now_s) else _too_late(request)


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
        trace=trace_context.of(request),
    )
