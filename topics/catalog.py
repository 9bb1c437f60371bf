"""Every topic: its key, record, partitions, retention, writers and readers.  The one definition."""

from dataclasses import dataclass, field
from typing import Literal

from topics.records import Length, Priority, Tier
from topics.settings import Settings

Process = Literal["upstream", "streams", "gpu_consumers", "autoscaler", "rampmeter"]


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


def landing(settings: Settings, priority: Priority, length: Length) -> str:
    """Where upstream puts requests; priority and length are its claim."""
    return settings.topic(f"requests.{priority}.{length}")


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

    made = [
        topic(f"requests.{p}.{n}", "tenant", "OpenAI body or envelope", t.landing_partitions, ("upstream",), "streams")
        for p in Priority
        for n in Length
    ]
    for pool, spec in settings.pools.items():
        made += [
            topic(f"lanes.{pool}.{tier}.{n}", "request id", "Work", spec.lane_partitions, ("streams",), "gpu_consumers")
            for tier in Tier
            for n in Length
        ]
    made += [
        topic(f"deferred.{s}s", "tenant", "Work", t.landing_partitions, ("streams",), "streams")
        for s in t.defer_delays_s
    ]
    made += [
        topic(f"retries.{s}s", "tenant", "Work", t.landing_partitions, ("gpu_consumers",), "streams")
        for s in t.retry_delays_s
    ]
    answering: tuple[Process, ...] = ("streams", "gpu_consumers")
    made += [
        topic(default_reply_name(settings), "request id", "Chunk, Reply", t.reply_partitions, answering, "upstream"),
        topic("usage", "tenant", "Usage", t.landing_partitions, ("gpu_consumers",), "streams"),
        topic("decisions", "request id", "Decision", t.landing_partitions, ("streams", "autoscaler"), "rampmeter"),
        topic("dead_letters", "original key", "DeadLetter", 1, answering, "rampmeter"),
    ]
    telemetry = Topic(
        settings.topic("telemetry"), "consumer id", "Telemetry", 1, ("gpu_consumers",), ("streams", "autoscaler"),
        compacted=True, config={"cleanup.policy": "compact"},
    )  # fmt: skip
    # Faust's own, created here since automatic creation is off: as many partitions as the source of the table has.
    changelog = Topic(
        f"{group(settings, 'streams')}-spend-changelog", "table key", "Faust", t.landing_partitions, ("streams",),
        ("streams",), compacted=True, config={"cleanup.policy": "compact,delete", **retention},
    )  # fmt: skip
    return [*made, telemetry, changelog]


def default_reply_name(settings: Settings) -> str:
    """The reply topic, without prefix, of a request that names none."""
    return settings.topics.reply_topics[0]
