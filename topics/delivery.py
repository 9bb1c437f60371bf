"""Errors after which sending a record again is useless; any other may pass."""

from confluent_kafka import KafkaError

from topics.outcomes import Reason

LOST_FOR_EVER = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - the library's public constants
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError._INVALID_ARG,  # noqa: SLF001
    }
)
"""The record cannot lie where it should, however long it is."""
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
FINAL = LOST_FOR_EVER | TOO_LARGE
_MISSING = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION}  # noqa: SLF001
)


def refusal(code: int) -> Reason:
    """Why an answer was refused with one of these for good."""
    if code in TOO_LARGE:
        return Reason.REPLY_TOO_LARGE
    if code == KafkaError._UNKNOWN_PARTITION:  # noqa: SLF001
        return Reason.REPLY_PARTITION_MISSING
    return Reason.REPLY_TOPIC_MISSING if code in _MISSING else Reason.REPLY_TOPIC_FORBIDDEN
