"""Look up in the reply topics whether an id was already answered.

The log is the truth: a process that dies between its answer and the note of it leaves work that looks unfinished, and
whoever takes over asks here before doing it again.
"""

import contextlib
from collections.abc import Collection

from confluent_kafka import Consumer, KafkaException, TopicPartition

from topics import clients, codec, delivery, pending, tail
from topics.records import Chunk, Reply
from topics.settings import Settings

_SKEW_S = 5.0


def find(
    settings: Settings, ids: Collection[str], topic: str, since_s: float, deadline_s: float = 30.0
) -> dict[str, Reply]:
    """Terminal replies of `ids` in `topic` written since `since_s` (less some clock skew).

    Reads each partition from that time up to its end as it is now.  Blocking; raises KafkaException when the
    broker cannot answer within `deadline_s`: unknown is not "unanswered".
    """
    wanted = {request_id.encode(): request_id for request_id in ids}
    found: dict[str, Reply] = {}
    with contextlib.closing(clients.reader(settings)) as reader:
        partitions = _partitions(reader, topic, deadline_s)
        if not partitions:
            return {}
        pending.wait(settings, reader, [TopicPartition(topic, partition) for partition in partitions], deadline_s)
        asked = [clients.at(topic, partition, since_s - _SKEW_S) for partition in partitions]
        for message in tail.until_ends(reader, tail.starts(reader, asked, deadline_s), deadline_s):
            if (key := message.key()) in wanted:
                answer = read(message.value())
                if isinstance(answer, Reply) and not answer.repeat:
                    found.setdefault(wanted[key], answer)
    return found


def _partitions(reader: Consumer, topic: str, timeout_s: float) -> list[int]:
    """None where no answer can ever have been written: the topic is not there, or is not for this user."""
    found = reader.list_topics(topic, timeout=timeout_s).topics[topic]
    if found.error is not None and found.error.code() not in delivery.LOST_FOR_EVER:
        raise KafkaException(found.error)
    return list(found.partitions)


def read(value: bytes | None) -> Reply | Chunk | None:
    """Read a record of a reply topic; None for what none of ours can have written."""
    try:
        return codec.decode_answer(value or b"")
    except codec.UNREADABLE:
        return None
