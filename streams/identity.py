"""Whose word is believed about tenant and class, and the rules that every record is verified by."""

from collections.abc import Mapping
from dataclasses import replace

from streams import metrics
from streams.policy import identity, priority
from streams.policy.identity import Arrival, Doubt, Window
from streams.policy.verification import Fault, Rules
from streams.settings import StreamsSettings
from topics import catalog, codec, tokens
from topics.codec import Claims
from topics.outcomes import Reason
from topics.records import Priority


class Identities:
    """Proves claims in the mode of the settings.  Reads the keys once, so that a new key needs a new process."""

    def __init__(self, settings: StreamsSettings) -> None:
        section = settings.identity
        self._mode = section.mode
        self._keys = section.secrets()
        self._window = Window(section.max_token_age_s, section.max_skew_s, settings.dedupe_window_s)
        self._tenants = frozenset(settings.topics.tenants)

    def check(
        self,
        claims: Claims,
        value: bytes,
        landing_tenant: str | None,
        now_s: float,
        landing_priority: Priority | None = None,
        arrived_s: float | None = None,
    ) -> Claims | Fault:
        """Proven claims, or why they are refused; refusals are counted."""
        found = self._prove(claims, value, Arrival(landing_tenant, landing_priority, arrived_s), now_s)
        if isinstance(found, Claims):
            return found
        metrics.IDENTITY_REFUSED.labels(found.why).inc()
        return Fault(Reason.BAD_IDENTITY, found.detail)

    def believed(
        self,
        claims: Claims,
        value: bytes,
        landing_tenant: str | None,
        now_s: float,
        arrived_s: float | None = None,
    ) -> Claims:
        """Claims by which a record that cannot be read is answered: the proven ones, or none that matters."""
        found = self._prove(claims, value, Arrival(landing_tenant, arrived_s=arrived_s), now_s)
        return found if isinstance(found, Claims) else identity.unproven(claims)

    def _prove(self, claims: Claims, value: bytes, arrival: Arrival, now_s: float) -> Claims | Doubt:
        if self._mode == "signed":
            return self._by_token(claims, replace(arrival, sha256=codec.digest(value)), now_s)
        if self._mode == "topic":
            return identity.by_topic(claims, arrival, self._tenants)
        return identity.of_landing(claims, arrival)

    def _by_token(self, claims: Claims, arrival: Arrival, now_s: float) -> Claims | Doubt:
        if not claims.token:
            return identity.MISSING
        try:
            token = tokens.unseal(claims.token, self._keys)
        except tokens.BadToken as error:
            return identity.UNPROVEN[error.why]
        return identity.by_token(claims, token, arrival, now_s, self._window)


class Rulebook:
    """The rules of the settings, put together once."""

    def __init__(self, settings: StreamsSettings) -> None:
        classes, reply_topics = settings.streams.classes, settings.identity.reply_topics
        self._rules = Rules(
            models=settings.models,
            default_model=settings.default_model,
            reply_allowed=tuple(map(settings.topic, settings.topics.reply_topics)),
            reply_default=settings.topic(catalog.default_reply_name(settings)),
            reply_partitions={},
            max_body_bytes=settings.topics.max_record_bytes,
            reply_own={tenant: tuple(map(settings.topic, names)) for tenant, names in reply_topics.items()},
            internal=catalog.internal(settings),
            class_rules=priority.Rules(
                classes.user_tier, classes.source, classes.model_kind, classes.path, classes.tenant_cap
            ),
        )

    def rules(self, reply_partitions: Mapping[str, int]) -> Rules:
        """The rules beside the partition counts of the topics that exist now."""
        return replace(self._rules, reply_partitions=reply_partitions)
