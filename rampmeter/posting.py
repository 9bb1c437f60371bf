"""A producer that many wait on: each record is followed until the broker has it."""

import threading
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message

from rampmeter.ask import Letter
from topics import clients
from topics.errors import DependencyDown, PipelineError
from topics.settings import Settings

DELIVERED_WITHIN_S = 30.0
_POLL_S = 0.1

Done = Callable[[PipelineError | None], None]
"""Told once, from a thread of the client: None when the broker has the record."""


class NotTaken(PipelineError):
    """The broker refuses this record, now and later: it is too large for its topic, or not for this user."""


class Post:
    """Sends from any thread, until it is closed."""

    def __init__(self, settings: Settings) -> None:
        self._servers = settings.kafka.get("bootstrap.servers", "")
        self._producer = clients.producer(settings, delivered_within_s=DELIVERED_WITHIN_S)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._turn, name="post", daemon=True)
        self._thread.start()

    def send(self, letter: Letter, done: Done) -> None:
        """Hand a record to the producer; does not block."""

        def delivered(error: KafkaError | None, _message: Message) -> None:
            done(None if error is None else self._fault(letter.topic, error))

        try:
            self._producer.produce(
                letter.topic, letter.value, letter.key, headers=letter.headers, on_delivery=delivered
            )
        except KafkaException as error:
            done(self._fault(letter.topic, error.args[0]))
        except BufferError:
            done(DependencyDown("too much waits for Kafka already", self._servers, "Look at the broker."))

    def is_broker_there(self, timeout_s: float) -> bool:
        """Whether Kafka answers; blocks."""
        return clients.is_broker_there(self._producer, timeout_s)

    def close(self) -> None:
        """Wait until everything sent is with the broker, or given up."""
        self._producer.flush()
        self._ending.set()
        self._thread.join()

    def _turn(self) -> None:
        while not self._ending.is_set():
            self._producer.poll(_POLL_S)

    def _fault(self, topic: str, error: KafkaError) -> PipelineError:
        if error.code() in _FOR_GOOD:
            return NotTaken(f"{topic} does not take the record: {error.str()}")
        return DependencyDown(f"Kafka did not take the record: {error.str()}", self._servers, f"Look at {topic}.")


_FOR_GOOD = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_RECORD)
