"""Reading partitions outside any group, from a place up to their ends as they are now."""

from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

_BATCH = 1000
_POLL_S = 0.05
"""Too small: the process turns while the broker fetches.  Too large: each end is learned of that much later."""


_MOVING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - a public constant
)
"""What is said while a partition's leader begins or changes, or a broker has just started; the client asks for the new
one, but not again."""
_TRIES, _PAUSE_S = 20, 0.1

_Found = TypeVar("_Found")


def is_end(message: Message) -> bool:
    """Whether this is no record but the word of a `clients.reader` that it has reached the partition's end."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - a public constant


def at_times(reader: Consumer, asked: Sequence[TopicPartition], timeout_s: float) -> list[TopicPartition]:
    """Each `clients.at` at its first record since then; the offset is negative where there is none.

    Raises KafkaException also when only one partition does not answer: unknown is not "none".
    """

    def ask() -> list[TopicPartition]:
        found = reader.offsets_for_times(list(asked), timeout=timeout_s)
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
        return found

    return _of_the_leader(ask)


def starts(reader: Consumer, asked: Sequence[TopicPartition], timeout_s: float) -> list[TopicPartition]:
    """The same without those that have no record since then.  Raises KafkaException."""
    return [place for place in at_times(reader, asked, timeout_s) if place.offset >= 0]


def partitions(reader: Consumer, topic: str, timeout_s: float) -> list[int]:
    """Those that a topic has.  Raises KafkaException, also when it is not there."""
    described = reader.list_topics(topic, timeout=timeout_s).topics[topic]
    if described.error is not None:
        raise KafkaException(described.error)
    return list(described.partitions)


def watermarks(reader: Consumer, place: TopicPartition, timeout_s: float) -> tuple[int, int]:
    """The partition's first offset and its end.  Raises KafkaException."""
    return _of_the_leader(lambda: reader.get_watermark_offsets(place, timeout=timeout_s))


def _of_the_leader(ask: Callable[[], _Found]) -> _Found:
    pause = Event()
    for _ in range(_TRIES - 1):
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _MOVING:
                raise
            pause.wait(_PAUSE_S)
    return ask()


def until_ends(reader: Consumer, places: Sequence[TopicPartition], silence_s: float) -> Iterator[Message]:
    """Every record from these places to the ends of their partitions.

    Raises KafkaException when neither records nor ends come for `silence_s`.
    """
    unread = {(place.topic, place.partition) for place in places}
    reader.assign(list(places))
    silent_polls = 0
    while unread:
        messages = reader.consume(_BATCH, timeout=_POLL_S)
        records = [message for message in messages if message.error() is None]
        ended = {(message.topic() or "", message.partition() or 0) for message in messages if is_end(message)}
        silent_polls = 0 if records or ended else silent_polls + 1
        if silent_polls * _POLL_S >= silence_s:
            error = KafkaError(KafkaError._TIMED_OUT, f"no record and no end for {silence_s:g} s")  # noqa: SLF001
            raise KafkaException(error)
        yield from records
        unread -= ended
