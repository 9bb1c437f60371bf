"""Reading partitions outside any group, from a place up to their ends as they are now."""

from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

_BATCH = 1000
_POLL_S = 0.05
"""Too small: the process turns while the broker fetches.  Too large: each end is learned of that much later."""


def is_end(message: Message) -> bool:
    """Whether this is no record but the word of a `clients.reader` that it has reached the partition's end."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - a public constant


def at_times(reader: Consumer, asked: Sequence[TopicPartition], timeout_s: float) -> list[TopicPartition]:
    """Each `clients.at` at its first record since then; the offset is negative where there is none.

    Raises KafkaException also when only one partition does not answer: unknown is not "none".
    """
    found = reader.offsets_for_times(list(asked), timeout=timeout_s)
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return found


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
