"""Follows what the workers that serve decide, for a shadow."""

from collections.abc import Callable
from contextlib import closing, suppress

from confluent_kafka import OFFSET_END, Message, TopicPartition

from streams import following
from streams.policy import fates
from streams.policy.fates import Fate
from streams.settings import StreamsSettings
from topics import clients, codec

_POLL_S = 0.2
_BATCH = 1000


class Reality:
    """Reads the decisions from now on in a thread of its own, and tells what became of requests."""

    def __init__(self, settings: StreamsSettings, tell: Callable[[str, Fate], None]) -> None:
        """`tell` is called in the thread, with an id."""
        self._settings, self._tell = settings, tell
        self._running = True
        self._thread = following.thread("decisions", self._follow)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._running = False
        if self._thread.is_alive():
            self._thread.join(timeout=10 * _POLL_S)

    def _follow(self) -> None:
        topic, partitions = self._settings.topic("decisions"), self._settings.topics.landing_partitions
        with closing(clients.reader(self._settings)) as reader:
            reader.assign([TopicPartition(topic, partition, OFFSET_END) for partition in range(partitions)])
            while self._running:
                for message in reader.consume(_BATCH, _POLL_S):
                    self._read(message)

    def _read(self, message: Message) -> None:
        if message.error() is not None:
            return
        with suppress(*codec.UNREADABLE):  # a foreign record tells of no request
            decision = codec.decode_decision(message.value() or b"")
            if (fate := fates.told(decision)) is not None:
                self._tell(decision.id, fate)
