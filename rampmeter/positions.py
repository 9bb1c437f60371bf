"""Where to start and stop reading topics that no group of ours commits."""

from collections.abc import Iterable

from confluent_kafka import Consumer, TopicPartition

from topics import clients, tail
from topics.errors import ConfigError

TIMEOUT_S = 10.0


def shown(topic: str, partition: int, offset: int) -> str:
    """A record's coordinates as people read them."""
    return f"{topic}[{partition}]@{offset}"


def _partitions(reader: Consumer, topic: str) -> list[int]:
    found = reader.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    if found.error is not None:
        fix = "create it first (`rampmeter topics apply` creates those of the settings)"
        raise ConfigError([f"topic {topic} cannot be read: {found.error.str()}; {fix}"])
    return list(found.partitions)


def ends(reader: Consumer, topics: Iterable[str]) -> list[TopicPartition]:
    """Every partition at its present end: what comes later is seen, nothing before."""
    found = []
    for topic in topics:
        for number in _partitions(reader, topic):
            place = TopicPartition(topic, number)
            place.offset = tail.watermarks(reader, place, TIMEOUT_S)[1]
            found.append(place)
    return found


def since(reader: Consumer, topics: Iterable[str], since_s: float) -> list[TopicPartition]:
    """Every partition at its first record written at or after `since_s`; partitions without one are left out."""
    asked = [clients.at(topic, number, since_s) for topic in topics for number in _partitions(reader, topic)]
    return tail.starts(reader, asked, TIMEOUT_S)
