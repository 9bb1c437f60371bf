"""Create the topics of the catalogue, and check that they are as the catalogue says.  Both can be repeated."""

from collections.abc import Mapping
from time import sleep

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from topics import catalog, clients
from topics.errors import ConfigError
from topics.settings import Settings

_TIMEOUT_S = 30.0
_VISIBLE_TRIES = 100
_VISIBLE_RETRY_S = 0.1


def partition_counts(settings: Settings, timeout_s: float = _TIMEOUT_S) -> dict[str, int]:
    """Partitions of every topic that the broker has.  Raises KafkaException when it does not answer in time."""
    found = clients.admin(settings).list_topics(timeout=timeout_s).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def apply(settings: Settings) -> list[str]:
    """Create what is missing and return its names.  Existing topics are not changed: `check` judges them."""
    admin = clients.admin(settings)
    existing = partition_counts(settings)
    missing = [topic for topic in catalog.topics(settings) if topic.name not in existing]
    if not missing:
        return []
    futures = admin.create_topics(
        [
            NewTopic(
                t.name,
                num_partitions=t.partitions,
                replication_factor=settings.topics.replication_factor,
                config=t.config,
            )
            for t in missing
        ],
        request_timeout=_TIMEOUT_S,
    )
    problems = []
    for name, future in futures.items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                problems.append(f"topic {name} could not be created: {error.args[0].str()}")
    if problems:
        raise ConfigError(problems)
    created = [topic.name for topic in missing]
    _await_visible(settings, created)
    return created


def _await_visible(settings: Settings, names: list[str]) -> None:
    """Return when the broker shows these topics: it answers a creation a moment before it knows of it everywhere.

    After the last try they are left to `require`, which says what is missing.
    """
    for _ in range(_VISIBLE_TRIES):
        if set(names) <= partition_counts(settings).keys():
            return
        sleep(_VISIBLE_RETRY_S)


def differences(settings: Settings) -> list[str]:
    """Each way in which the broker's topics differ from the catalogue, as a sentence with both numbers."""
    existing = partition_counts(settings)
    missing = [
        f"topic {topic.name} does not exist, the settings want {topic.partitions} partitions; "
        "run `rampmeter topics apply`"
        for topic in catalog.topics(settings)
        if topic.name not in existing
    ]
    return [*missing, *miscounted(settings, existing)]


def miscounted(settings: Settings, existing: Mapping[str, int]) -> list[str]:
    """Of topics that exist, those with another number of partitions: nobody but people can decide about those."""
    return [
        f"topic {topic.name} has {existing[topic.name]} partitions, the settings want {topic.partitions}; "
        "change the settings, or delete the topic when it is empty and run `rampmeter topics apply`"
        for topic in catalog.topics(settings)
        if existing.get(topic.name, topic.partitions) != topic.partitions
    ]


def require(settings: Settings) -> None:
    """Raise ConfigError with every difference."""
    found = differences(settings)
    if found:
        raise ConfigError(found)
