"""Orders consumers to drain.  A lost order is given again, since the target sees no effect."""

import secrets

from autoscaler.journal import CLOSE_S
from topics import clients, codec, orders
from topics.clock import Clock
from topics.records import Control, ControlAction, ControlKind
from topics.settings import Settings

MAX_QUEUED = 1000


class Drains:
    """Writes to the `control` topic without waiting for the broker.  For one thread."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._topic, self._clock = settings.topic("control"), clock
        self._producer = clients.producer(settings, queue_buffering_max_messages=MAX_QUEUED)

    def order(self, consumer: str) -> None:
        """Have this consumer give its partitions away and end what it runs."""
        order = Control(
            id=f"drain-{secrets.token_hex(6)}",
            action=ControlAction.DRAIN,
            kind=ControlKind.CONSUMER,
            name=consumer,
            at_s=self._clock.wall_s(),
            by="autoscaler",
        )
        self._producer.produce(self._topic, codec.encode(order), orders.key_of(order).encode())
        self._producer.poll(0)

    def close(self) -> None:
        """Wait for what is queued, within the journal's bound."""
        self._producer.flush(CLOSE_S)
