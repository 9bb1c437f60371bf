"""Errors after which sending a record again is useless; any other may pass."""

from confluent_kafka import KafkaError

LOST_FOR_EVER = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - the library's public constants
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_MSG,
        KafkaError._INVALID_ARG,  # noqa: SLF001
    }
)
"""The record cannot lie where it should, however long it is."""
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
FINAL = LOST_FOR_EVER | TOO_LARGE
