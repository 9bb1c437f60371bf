"""Follows what the workers that serve decide, for a shadow."""

from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import OFFSET_END, Message, TopicPartition

from streams.following import Follower
from streams.policy import fates
from streams.policy.fates import Fate
from streams.settings import StreamsSettings
from topics import codec


class Reality(Follower):
    """Reads the decisions from now on in a thread of its own, and tells what became of requests."""

    def __init__(self, settings: StreamsSettings, tell: Callable[[str, Fate], None]) -> None:
        """`tell` is called in the thread, with an id."""
        topic, partitions = settings.topic("decisions"), settings.topics.landing_partitions
        places = [TopicPartition(topic, partition, OFFSET_END) for partition in range(partitions)]
        super().__init__("decisions", settings, places)
        self._tell = tell

    def _read(self, message: Message) -> None:
        if message.error() is not None:
            return
        with suppress(*codec.UNREADABLE):  # a foreign record tells of no request
            decision = codec.decode_decision(message.value() or b"")
            if (fate := fates.told(decision)) is not None:
                self._tell(decision.id, fate)
