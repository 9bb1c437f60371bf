"""Sends decisions to their topic.  A lost one is counted and stops nothing."""

from collections.abc import Callable

from confluent_kafka import KafkaError, Message

from topics import clients, codec
from topics.records import Decision
from topics.settings import Settings

MAX_QUEUED = 1000
CLOSE_S = 5.0


class Journal:
    """Writes to the `decisions` topic without waiting for the broker.  For one thread."""

    def __init__(self, settings: Settings, on_loss: Callable[[], None]) -> None:
        self._topic, self._on_loss = settings.topic("decisions"), on_loss
        self._producer = clients.producer(settings, queue_buffering_max_messages=MAX_QUEUED)

    def publish(self, decision: Decision) -> None:
        """Queue a decision; reports of earlier ones are taken in on the way."""
        try:
            self._producer.produce(
                self._topic, codec.encode(decision), decision.id.encode(), on_delivery=self._delivered
            )
        except BufferError:
            self._on_loss()
        self._producer.poll(0)

    def close(self) -> None:
        """Wait for what is queued, at most 5 s; the rest is lost."""
        for _ in range(self._producer.flush(CLOSE_S)):
            self._on_loss()

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._on_loss()
