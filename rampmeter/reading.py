"""Reading topics outside any group: what they hold up to now, or one record by its coordinates."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from rampmeter import positions
from streams.policy.verification import matches
from streams.settings import StreamsSettings
from topics import admin, answers, clients, codec, tail
from topics.errors import DependencyDown, PipelineError
from topics.records import Origin, Reply
from topics.settings import Settings

SILENCE_S = 30.0
SKEW_S = 5.0
"""By which clocks may differ: what belongs to a record may bear a time that is so much earlier."""

_Record = TypeVar("_Record")


class Missing(PipelineError):
    """The record is not in the log (any more)."""


def since(settings: Settings, topics: Iterable[str], since_s: float) -> Iterator[Message]:
    """Every record written at or after `since_s`, up to the ends as they are now."""
    with closing(clients.reader(settings)) as reader:
        yield from _until_ends(settings, reader, positions.since(reader, topics, since_s))


def records(
    settings: Settings, name: str, decode: Callable[[bytes], _Record], since_s: float
) -> Iterator[tuple[Message, _Record]]:
    """What a topic of ours holds since then; a record that none of ours can have written is passed over."""
    for message in since(settings, [settings.topic(name)], since_s):
        try:
            yield message, decode(message.value() or b"")
        except codec.UNREADABLE:
            continue


def replies(settings: StreamsSettings, since_s: float) -> Iterator[tuple[Message, Reply]]:
    """Every terminal reply since then, on all reply topics."""
    for message in since(settings, reply_topics(settings), since_s):
        answer = answers.read(message.value())
        if isinstance(answer, Reply):
            yield message, answer


def whole(settings: Settings, topic: str) -> Iterator[Message]:
    """Every record of a topic with one partition, up to its end as it is now."""
    with closing(clients.reader(settings)) as reader:
        positions.ends(reader, [topic])  # says what is wrong when there is no such topic
        yield from _until_ends(settings, reader, [TopicPartition(topic, 0, 0)])


def _until_ends(settings: Settings, reader: Consumer, places: list[TopicPartition]) -> Iterator[Message]:
    try:
        yield from tail.until_ends(reader, places, SILENCE_S)
    except KafkaException as error:
        raise _silent(settings) from error


def reply_topics(settings: StreamsSettings) -> list[str]:
    """The topics on which answers may lie: those that an allow-list names, a tenant's own too, and the broker has."""
    lists = (settings.topics.reply_topics, *settings.identity.reply_topics.values())
    patterns = {settings.topic(name) for names in lists for name in names}
    return [name for name in admin.partition_counts(settings) if any(matches(name, pattern) for pattern in patterns)]


class Picker:
    """Reads single records by their coordinates, until it is closed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # Each record is another assignment, and the fetch in flight is waited for first.
        self._reader = clients.consumer(
            settings, settings.topic("rampmeter-reader"), enable_partition_eof=True, fetch_wait_max_ms=1
        )
        self._partitions: dict[str, Collection[int]] = {}

    def one(self, place: Origin) -> Message:
        """The record at these coordinates; raises Missing, which says why it is not there."""
        where = shown(place)
        if place.partition not in self._existing(place.topic):
            raise Missing(f"{where}: the broker has no such partition")
        self._reader.assign([TopicPartition(place.topic, place.partition, place.offset)])
        message = self._reader.poll(SILENCE_S)
        if message is None:
            raise _silent(self._settings)
        fault, offset = message.error(), message.offset() or 0
        if fault is not None and not tail.is_end(message):
            raise KafkaException(fault)
        # Outside the log, reading begins at its beginning.
        if offset > place.offset:
            raise Missing(f"{where} has expired: the log begins at {offset} now")
        if fault is not None or offset < place.offset:
            raise Missing(f"{where} lies behind the end of the log: the topic was made anew")
        return message

    def close(self) -> None:
        """Leave the broker."""
        self._reader.close()

    def _existing(self, topic: str) -> Collection[int]:
        if topic not in self._partitions:
            self._partitions[topic] = self._reader.list_topics(topic, timeout=SILENCE_S).topics[topic].partitions.keys()
        return self._partitions[topic]


def headers(message: Message) -> list[tuple[str, bytes | str | None]]:
    """The headers as pairs."""
    found = message.headers() or []
    return list(found.items()) if isinstance(found, dict) else found


def shown(place: Origin) -> str:
    """Coordinates as people read them."""
    return positions.shown(place.topic, place.partition, place.offset)


def _silent(settings: Settings) -> DependencyDown:
    servers = settings.kafka.get("bootstrap.servers", "")
    return DependencyDown("Kafka stopped answering while its topics were read", servers, "Try again.")
