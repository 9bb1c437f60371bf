"""How the configuration of topics that exist differs from the catalogue, and setting it right.  Can be repeated."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from topics import admin, catalog, clients
from topics.errors import ConfigError
from topics.settings import Settings

_TIMEOUT_S = 30.0
_VISIBLE_TRIES = 100
_VISIBLE_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Drift:
    """One property of a topic that is not as the catalogue says."""

    topic: str
    name: str
    value: str | None
    wanted: str

    def __str__(self) -> str:
        return f"topic {self.topic} has {self.name}={self.value}, the settings want {self.wanted}"


def find(settings: Settings) -> list[Drift]:
    """Every difference; topics that do not exist have none.  Raises KafkaException when one may not be asked about."""
    existing = admin.partition_counts(settings)
    wanted = {topic.name: topic.config for topic in catalog.topics(settings) if topic.name in existing and topic.config}
    if not wanted:
        return []
    asking = clients.admin(settings)  # named, since the call dies with it
    asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in wanted]
    found = []
    for resource, future in asking.describe_configs(asked, request_timeout=_TIMEOUT_S).items():
        has = {entry.name: entry.value for entry in future.result().values()}
        found += [
            Drift(resource.name, name, has.get(name), value)
            for name, value in wanted[resource.name].items()
            if _parts(has.get(name)) != _parts(value)
        ]
    return sorted(found, key=lambda drift: (drift.topic, drift.name))


def correct(settings: Settings, drifts: Sequence[Drift]) -> None:
    """Set these properties as the catalogue says; others of the topics stay.  Raises ConfigError with all refusals."""
    entries: dict[str, list[ConfigEntry]] = {}
    for drift in drifts:
        entry = ConfigEntry(drift.name, drift.wanted, incremental_operation=AlterConfigOpType.SET)
        entries.setdefault(drift.topic, []).append(entry)
    changes = [
        ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=mine) for name, mine in entries.items()
    ]
    if not changes:
        return
    changing, problems = clients.admin(settings), []
    for resource, future in changing.incremental_alter_configs(changes, request_timeout=_TIMEOUT_S).items():
        try:
            future.result()
        except KafkaException as error:
            problems.append(f"topic {resource.name} could not be changed: {error.args[0].str()}")
    if problems:
        raise ConfigError(problems)
    _await_visible(settings, drifts)


def _await_visible(settings: Settings, drifts: Sequence[Drift]) -> None:
    """Return when the broker shows it: it answers a change a moment before it knows of it everywhere."""
    changed, pause = {(drift.topic, drift.name) for drift in drifts}, Event()
    for _ in range(_VISIBLE_TRIES):
        if not any((drift.topic, drift.name) in changed for drift in find(settings)):
            return
        pause.wait(_VISIBLE_RETRY_S)


def _parts(value: str | None) -> set[str]:
    """A list of words is the same in any order."""
    return set((value or "").split(","))
