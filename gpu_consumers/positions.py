"""Where newly assigned partitions go on: their committed offsets.  Part of the poll thread."""

from collections.abc import Callable, Collection

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from topics.clock import Clock
from topics.errors import DependencyDown

log = structlog.get_logger()

_TIMEOUT_S = 5.0
REFUSED_LIMIT_S = 30.0
"""Too small: an epoch that the next heartbeats renew ends the process.  Too large: what no retry cures goes unseen."""

_AWAY = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - public constants, here and below
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
    }
)


def read(
    consumer: Consumer, partitions: list[TopicPartition], is_ending: Callable[[], bool], clock: Clock
) -> list[TopicPartition] | None:
    """Committed offsets with their metadata; None when the process ends first.  `is_ending` waits a moment.

    An outage is waited for: nothing can be fetched meanwhile anyhow, and a process that ended over it would only drop
    what it runs and end again after its restart.  A refusal is no outage.  Going on without an offset would leave the
    partition to the client, which knows no map and may never start it; so DependencyDown is raised when it lasts.
    """
    refused_since_s = None
    last = None
    while True:
        found, refused, error = _ask(consumer, partitions)
        if error is None:
            return found
        if error.code() != last:
            last = error.code()
            log.warning("committed_unread", partitions=_names(refused), error=error.name())
        now_s = clock.mono_s()
        refused_since_s = None if error.code() in _AWAY else now_s if refused_since_s is None else refused_since_s
        if refused_since_s is not None and now_s - refused_since_s >= REFUSED_LIMIT_S:
            what = f"Kafka does not say which offset is committed: {error.name()}, {error.str()}"
            fix = "Look whether this user may read the group and the topic, then start again."
            raise DependencyDown(what, _names(refused), fix)
        if is_ending():
            return None


def _ask(
    consumer: Consumer, partitions: list[TopicPartition]
) -> tuple[list[TopicPartition], list[TopicPartition], KafkaError | None]:
    """What is committed, or which partitions are without an answer and the error of the first."""
    if not partitions:
        return [], [], None
    try:
        found = consumer.committed(partitions, timeout=_TIMEOUT_S)
    except KafkaException as error:
        return [], partitions, error.args[0]
    refused = [partition for partition in found if partition.error is not None]
    return found, refused, refused[0].error if refused else None


def _names(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(f"{partition.topic} [{partition.partition}]" for partition in partitions)
