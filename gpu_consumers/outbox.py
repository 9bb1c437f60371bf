"""Records to the broker and their acknowledgements back to the loop.

The client's callbacks run in a thread of their own, which sleeps until the broker has answered; the loop is woken once
for all that came meanwhile.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gpu_consumers.mailbox import Mailbox
from topics import clients

_POLL_S = 0.2
_UNKNOWN_PARTITION = -1


class Ack(NamedTuple):
    """What became of a record: where it lies, or the error's code."""

    error: int | None
    topic: str
    partition: int = -1
    offset: int = -1


OnAck = Callable[[Ack], None]


@dataclass(frozen=True, slots=True)
class Letter:
    """A record to send."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, str | bytes | None]] | None = None
    partition: int | None = None
    is_alone: bool = False
    """In a batch of its own."""


def produce(producer: Producer, letter: Letter, on_ack: OnAck | None) -> None:
    """Hand a letter to the client; `on_ack` runs in the thread that polls it.  Raises what the client raises."""
    producer.produce(
        letter.topic,
        value=letter.value,
        key=letter.key,
        partition=_UNKNOWN_PARTITION if letter.partition is None else letter.partition,
        headers=letter.headers,
        on_delivery=on_ack and _reporter(on_ack),
    )


def _reporter(on_ack: OnAck) -> Callable[[KafkaError | None, Message], None]:
    def report(error: KafkaError | None, message: Message) -> None:
        code = None if error is None else error.code()
        on_ack(Ack(code, message.topic() or "", message.partition() or 0, message.offset() or 0))

    return report


class Outbox:
    """Sends without waiting.  `send` and `deliver` belong to the loop.

    What the client's queue cannot take waits here in order; `is_congested` tells writers of many records to wait.
    """

    def __init__(self, producer: Producer, make_single: Callable[[], Producer], wake: Callable[[], object]) -> None:
        """`make_single` builds a producer that sends each record in a batch of its own; it is rarely needed."""
        self._producer, self._make_single = producer, make_single
        self._single: Producer | None = None
        self._acks: Mailbox[tuple[OnAck, Ack]] = Mailbox(wake)
        self._waiting: deque[tuple[Letter, OnAck | None]] = deque()
        self._stopped = False
        self.failure: KafkaException | None = None
        """Set when the producer will never send again."""
        self._thread = threading.Thread(target=self._poll, name="outbox", daemon=True)

    def start(self) -> None:
        """Begin to receive acknowledgements."""
        self._thread.start()

    def send(self, letter: Letter, on_ack: OnAck | None) -> None:
        """Queue a record; `on_ack` runs later within `deliver`."""
        if self._waiting or not self._produce(letter, on_ack):
            self._waiting.append((letter, on_ack))

    @property
    def is_congested(self) -> bool:
        """The client's queue is full."""
        return bool(self._waiting)

    @property
    def unsent(self) -> int:
        """What the broker has not answered yet."""
        single = 0 if self._single is None else len(self._single)
        return len(self._waiting) + len(self._producer) + single

    def deliver(self) -> None:
        """Run the callbacks of what the broker has answered, then send what had to wait."""
        for on_ack, ack in self._acks.take():
            on_ack(ack)
        while self._waiting and self._produce(*self._waiting[0]):
            self._waiting.popleft()

    def stop(self) -> None:
        """End the thread; who waits for what is unsent waits before."""
        self._stopped = True
        self._thread.join(_POLL_S * 2)

    def is_broker_there(self, timeout_s: float) -> bool:
        """Ask the broker; blocks, from any thread."""
        return clients.is_broker_there(self._producer, timeout_s)

    def _poll(self) -> None:
        while not self._stopped:
            self._producer.poll(_POLL_S)
            if self._single is not None:
                self._single.poll(0)

    def _sender(self, letter: Letter) -> Producer:
        if letter.is_alone and self._single is None:
            self._single = self._make_single()
        return self._single if letter.is_alone and self._single is not None else self._producer

    def _produce(self, letter: Letter, on_ack: OnAck | None) -> bool:
        try:
            produce(self._sender(letter), letter, on_ack and self._later(on_ack))
        except BufferError:
            return False
        except KafkaException as error:
            if clients.is_fatal(error.args[0]):
                self.failure = error
            if on_ack is not None:
                self._acks.put((on_ack, Ack(error.args[0].code(), letter.topic)))
        return True

    def _later(self, on_ack: OnAck) -> OnAck:
        """The same on the loop."""
        put = self._acks.put
        return lambda ack: put((on_ack, ack))
