"""Every topic: its key, record, partitions, retention, writers and readers.  The one definition."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from topics.records import Length, Priority, Tier
from topics.settings import Settings

Process = Literal["upstream", "streams", "gpu_consumers", "autoscaler", "rampmeter"]
_BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as it must exist.  `name` is complete, prefix included."""

    name: str
    key: str
    record: str
    partitions: int
    writers: tuple[Process, ...]
    readers: tuple[Process, ...]
    compacted: bool = False
    config: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Landing:
    """A landing topic and what its name says.  `tenant` is None on those that all tenants share."""

    topic: str
    priority: Priority
    length: Length
    tenant: str | None = None


def landing(settings: Settings, priority: Priority, length: Length, tenant: str | None = None) -> str:
    """Where upstream puts requests; priority and length are its claim.

    A tenant's own topics prove who writes when the broker lets no one else: allow WRITE on
    `<prefix>requests.<tenant>.` (prefixed) to its principal only, and on the shared ones to none.
    """
    owner = "" if tenant is None else f"{tenant}."
    return settings.topic(f"requests.{owner}{priority}.{length}")


def landings(settings: Settings) -> list[Landing]:
    """All landing topics: the shared ones first, then those of each tenant."""
    return [
        Landing(landing(settings, priority, length, tenant), priority, length, tenant)
        for tenant in (None, *settings.topics.tenants)
        for priority in Priority
        for length in Length
    ]


def lane(settings: Settings, pool: str, tier: Tier, length: Length) -> str:
    """Where admitted work of a pool waits for a consumer."""
    return settings.topic(f"lanes.{pool}.{tier}.{length}")


def lanes(settings: Settings, pool: str) -> list[str]:
    """All lane topics of a pool."""
    return [lane(settings, pool, tier, length) for tier in Tier for length in Length]


def deferred(settings: Settings, delay_s: int) -> str:
    """Work that comes back after a fixed delay, so that the head is always the next due."""
    return settings.topic(f"deferred.{delay_s}s")


def retries(settings: Settings, delay_s: int) -> str:
    """Attempts that failed and are tried again after a fixed delay."""
    return settings.topic(f"retries.{delay_s}s")


def group(settings: Settings, name: str) -> str:
    """A consumer group or Faust application id; prefixed like the topics."""
    return settings.topic(f"rampmeter-{name}")


def streams_group(settings: Settings, shadow: str | None = None) -> str:
    """The group of the streams workers that serve, or of those of a shadow."""
    return group(settings, "streams" if shadow is None else f"shadow-{shadow}")


def gpu_group(settings: Settings, pool: str) -> str:
    """The group of a pool's GPU consumers, whose committed offsets are the lag."""
    return group(settings, f"gpu-{pool}")


def topics(settings: Settings) -> list[Topic]:
    """The whole catalogue for these settings."""
    t = settings.topics
    retention = {"retention.ms": str(int(t.retention_s * 1000)), "max.message.bytes": str(t.max_record_bytes + 200_000)}

    def topic(
        name: str, key: str, record: str, partitions: int, writers: tuple[Process, ...], *readers: Process
    ) -> Topic:
        return Topic(settings.topic(name), key, record, partitions, writers, readers, config=retention)

    # The broker's time: who dates a request back would be promoted for its age, who dates a delay ahead would hold up
    # all that lies behind it.
    arriving = {**retention, **_BROKERS_TIME}
    made = [
        Topic(
            spot.topic, "tenant", "OpenAI body or envelope", t.landing_partitions, ("upstream", "rampmeter"),
            ("streams", "rampmeter"),
            config=arriving,
        )
        for spot in landings(settings)
    ]  # fmt: skip
    # Streams promotes what is late, the autoscaler looks at the oldest.
    taking: tuple[Process, ...] = ("gpu_consumers", "streams", "autoscaler", "rampmeter")
    for pool, spec in settings.pools.items():
        made += [
            topic(f"lanes.{pool}.{tier}.{n}", "request id", "Work", spec.lane_partitions, ("streams",), *taking)
            for tier in Tier
            for n in Length
        ]
    made += _delayed(settings, arriving)
    answering: tuple[Process, ...] = ("streams", "gpu_consumers")
    made += [
        topic(
            default_reply_name(settings),
            "request id",
            "Chunk, Reply",
            t.reply_partitions,
            answering,
            "upstream",
            *answering,  # whether an id was answered before its worker or consumer died
            "rampmeter",
        ),
        topic("usage", "tenant", "Usage", t.landing_partitions, ("gpu_consumers",), "streams", "rampmeter"),
        topic(
            "decisions",
            "request id",
            "Decision",
            t.landing_partitions,
            ("streams", "gpu_consumers", "autoscaler"),
            "streams",  # shadows
            "autoscaler",  # what waits before the lanes
            "rampmeter",
        ),
        topic("dead_letters", "original key", "DeadLetter", 1, answering, "rampmeter"),
        topic("balances", "worker", "Balances", 1, ("streams",), "streams"),
    ]
    return [*made, *_compacted(settings, retention)]


def _delayed(settings: Settings, config: dict[str, str]) -> list[Topic]:
    """Topics whose records are looked at again after a fixed time."""
    t = settings.topics
    return [
        *(
            Topic(
                deferred(settings, s), "tenant", "Work", t.landing_partitions, ("streams",), ("streams", "rampmeter"),
                config=config,
            )
            for s in t.defer_delays_s
        ),
        *(
            Topic(
                retries(settings, s), "tenant", "Work", t.landing_partitions, ("gpu_consumers", "streams"),
                ("streams", "rampmeter"), config=config,
            )
            for s in t.retry_delays_s
        ),
    ]  # fmt: skip


def _compacted(settings: Settings, retention: dict[str, str]) -> list[Topic]:
    """Topics of which the last record of a key counts."""
    forgetting = {"cleanup.policy": "compact,delete", **retention}

    def topic(
        name: str, key: str, record: str, writers: tuple[Process, ...], *readers: Process, config: Mapping[str, str]
    ) -> Topic:
        return Topic(settings.topic(name), key, record, 1, writers, readers, compacted=True, config=dict(config))

    # Faust's own, created here since automatic creation is off: as many partitions as the source of the table has.
    changelog = Topic(
        f"{group(settings, 'streams')}-spend-changelog", "table key", "Faust", settings.topics.landing_partitions,
        ("streams",), ("streams",), compacted=True, config=forgetting,
    )  # fmt: skip
    keeping = {"cleanup.policy": "compact"}
    ordered = {**keeping, **_BROKERS_TIME}  # an order holds from when it came, not from when it says
    ordering: tuple[Process, ...] = ("rampmeter", "upstream", "streams", "autoscaler")
    following: tuple[Process, ...] = ("streams", "gpu_consumers", "rampmeter")
    return [
        topic(
            "telemetry",
            "consumer id",
            "Telemetry",
            ("gpu_consumers",),
            "streams",
            "gpu_consumers",
            "autoscaler",
            "rampmeter",
            config=keeping,
        ),
        # What is in use is told again long before it is deleted; the rest may be forgotten.
        topic("estimates", "tenant, model, template", "Estimate", ("streams",), "streams", config=forgetting),
        # A pause holds until it is taken back.  Streams writes the tombstones of old cancels and drains.
        topic("control", "order's key", "Control", ordering, *following, config=ordered),
        changelog,
    ]


def internal(settings: Settings) -> tuple[str, ...]:
    """Patterns of topics that no answer may go to, whatever an allow-list says: ours, Faust's and the broker's.

    A `*` at an end of a pattern stands for anything.
    """
    families = tuple(settings.topic(f"{family}.*") for family in ("requests", "lanes", "deferred", "retries"))
    prefixes = tuple(family.removesuffix("*") for family in families)
    reply = settings.topic(default_reply_name(settings))
    exact = [topic.name for topic in topics(settings) if not topic.name.startswith(prefixes) and topic.name != reply]
    return ("__*", f"{group(settings, 'streams')}-*", "*-changelog", "*-repartition", *families, *exact)


def default_reply_name(settings: Settings) -> str:
    """The reply topic, without prefix, of a request that names none."""
    return settings.topics.reply_topics[0]
