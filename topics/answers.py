"""Look up in the reply topics whether an id was already answered.

The log is the truth: a process that dies between its answer and the note of it leaves work that looks unfinished, and
whoever takes over asks here before doing it again.
"""

import contextlib
from collections.abc import Collection

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from topics import clients, codec
from topics.records import Chunk, Reply
from topics.settings import Settings

_POLL_S = 1.0
_BATCH = 500
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
        partitions = list(reader.list_topics(topic, timeout=deadline_s).topics[topic].partitions)
        since_ms = int((since_s - _SKEW_S) * 1000)
        starts = reader.offsets_for_times([TopicPartition(topic, p, since_ms) for p in partitions], timeout=deadline_s)
        open_ends = {tp.partition: tp for tp in starts if tp.offset >= 0}
        if not open_ends:
            return found
        reader.assign(list(open_ends.values()))
        silent_polls = 0
        while open_ends:
            messages = reader.consume(_BATCH, timeout=_POLL_S)
            silent_polls = 0 if messages else silent_polls + 1
            if silent_polls * _POLL_S >= deadline_s:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer from {topic}"))  # noqa: SLF001
            for message in messages:
                error = message.error()
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's public constant
                        continue
                    open_ends.pop(message.partition() or 0, None)
                elif (key := message.key()) in wanted:
                    answer = read(message.value())
                    if isinstance(answer, Reply) and not answer.repeat:
                        found.setdefault(wanted[key], answer)
    return found


def read(value: bytes | None) -> Reply | Chunk | None:
    """Read a record of a reply topic; None for what none of ours can have written."""
    try:
        return codec.decode_answer(value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
