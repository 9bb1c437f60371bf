"""Where a shadow's group begins: with what comes now, since what came before cannot be decided again under its load."""

import threading
from contextlib import closing

from confluent_kafka import Consumer, KafkaException, TopicPartition

from streams.settings import StreamsSettings
from topics import catalog, clients, tail

_TIMEOUT_S = 10.0
_TRIES = 20
_RETRY_S = 0.5


def begin_now(settings: StreamsSettings, shadow: str) -> None:
    """Commit the present ends of the landing partitions that the group has no commit of; call it before joining.

    Left to the client's reset a partition would begin anew with each rebalance until it has a commit.  A group that has
    members takes no commit from here: of two workers that start at once one commits, and the other finds it done.
    Raises KafkaException.
    """
    topics = [spot.topic for spot in catalog.landings(settings)]
    places = [TopicPartition(topic, p) for topic in topics for p in range(settings.topics.landing_partitions)]
    with closing(clients.consumer(settings, catalog.streams_group(settings, shadow))) as reader:
        for left in reversed(range(_TRIES)):  # a group's coordinator may be on the move, or just being made
            try:
                _commit_missing(reader, places)
            except KafkaException:
                if not left:
                    raise
                threading.Event().wait(_RETRY_S)
            else:
                return


def _commit_missing(reader: Consumer, places: list[TopicPartition]) -> None:
    found = reader.committed(places, timeout=_TIMEOUT_S)
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    missing = [place for place in found if place.offset < 0]
    for place in missing:
        place.offset = tail.watermarks(reader, place, _TIMEOUT_S)[1]
    if missing:
        reader.commit(offsets=missing, asynchronous=False)
