"""The least that each process must be allowed on the broker, made from the catalogue.  Grants nothing."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from topics import catalog
from topics.catalog import Process, Topic
from topics.settings import Settings

Resource = Literal["topic", "group", "transactional-id"]
Operation = Literal["READ", "WRITE", "DESCRIBE", "CREATE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"]
PROCESSES: tuple[Process, ...] = ("streams", "gpu_consumers", "autoscaler", "rampmeter", "upstream")


@dataclass(frozen=True, slots=True)
class Acl:
    """What the principal of a process may do with a resource, or with all whose names begin so."""

    process: Process
    resource: Resource
    name: str
    is_prefix: bool
    operations: tuple[Operation, ...]
    tenant: str | None = None
    """Whose own landing topic it is: of upstream only this tenant's user may have it."""


def needed(settings: Settings, reply_patterns: Collection[str] = ()) -> list[Acl]:
    """Every line, by process.  `reply_patterns`: complete names that answers may go to, `*` at the end for a prefix.

    `upstream` is every producer. Where the broker proves whose a request is (`identity.mode` topic), its lines on the
    shared landing topics go to nobody, and those of a tenant to this tenant's user only.
    """
    found: defaultdict[tuple[Process, Resource, str, bool], set[Operation]] = defaultdict(set)
    for process, resource, name, operations in (
        *_topics(settings), *_replies(settings, reply_patterns), *_groups(settings)
    ):  # fmt: skip
        found[process, resource, name.removesuffix("*"), name.endswith("*")] |= set(operations)
    owners = {spot.topic: spot.tenant for spot in catalog.landings(settings)}
    lines = [
        Acl(*key, tuple(sorted(operations)), owners.get(key[2]) if key[0] == "upstream" else None)
        for key, operations in found.items()
    ]
    least = [line for line in lines if not any(_covers(other, line) for other in lines)]
    return sorted(least, key=lambda line: (PROCESSES.index(line.process), line.resource, line.tenant or "", line.name))


_Line = tuple[Process, Resource, str, tuple[Operation, ...]]


def _topics(settings: Settings) -> Iterator[_Line]:
    for topic in catalog.topics(settings):
        for process in topic.readers:
            yield process, "topic", _family(settings, topic, process), ("READ", "DESCRIBE")
        for process in topic.writers:
            yield process, "topic", _family(settings, topic, process), ("WRITE", "DESCRIBE")
        for process in _CHECKING:
            yield process, "topic", _family(settings, topic, process), ("DESCRIBE",)
        yield "rampmeter", "topic", _family(settings, topic, "rampmeter"), _LOOKING_AFTER


_CHECKING: tuple[Process, ...] = ("streams", "gpu_consumers", "autoscaler")
"""Who starts only when all topics are as the settings want them."""
_LOOKING_AFTER: tuple[Operation, ...] = ("CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")


def _family(settings: Settings, topic: Topic, process: Process) -> str:
    """Those of a family go together; a producer's own are named one by one, since another's begin the same."""
    families = ["deferred.", "retries.", *(f"lanes.{pool}." for pool in settings.pools)]
    families += [] if process == "upstream" else ["requests."]
    prefixes = [settings.topic(family) for family in families]
    return next((f"{prefix}*" for prefix in prefixes if topic.name.startswith(prefix)), topic.name)


def _replies(settings: Settings, patterns: Collection[str]) -> Iterator[_Line]:
    for pattern in (*(settings.topic(name) for name in settings.topics.reply_topics), *patterns):
        yield "upstream", "topic", pattern, ("READ", "DESCRIBE")
        yield "rampmeter", "topic", pattern, ("READ", "DESCRIBE")
        for process in _ANSWERING:
            yield process, "topic", pattern, ("READ", "WRITE", "DESCRIBE")


_ANSWERING: tuple[Process, ...] = ("streams", "gpu_consumers")


def _groups(settings: Settings) -> Iterator[_Line]:
    yield "streams", "group", catalog.streams_group(settings), ("READ",)
    yield "streams", "group", catalog.group(settings, "control"), ("READ",)
    yield "streams", "group", f"{catalog.streams_group(settings, '')}*", ("READ",)
    for pool in settings.pools:
        group = catalog.gpu_group(settings, pool)
        yield "gpu_consumers", "group", group, ("READ",)
        yield "gpu_consumers", "transactional-id", f"{group}-*", ("WRITE", "DESCRIBE")
        for process in _WATCHING:
            yield process, "group", group, ("DESCRIBE",)
    for process in PROCESSES:
        if process != "upstream":
            yield process, "group", catalog.group(settings, "reader"), ("DESCRIBE",)


_WATCHING: tuple[Process, ...] = ("streams", "autoscaler", "rampmeter")
"""Who asks how far a pool's consumers have come."""


def _covers(one: Acl, other: Acl) -> bool:
    """Whether the other line allows nothing that this one does not."""
    return (
        one != other
        and (one.process, one.resource, one.is_prefix) == (other.process, other.resource, True)
        and other.name.startswith(one.name)
        and set(other.operations) <= set(one.operations)
    )
