"""One reader of a reply topic for many requests in flight: each answer goes to whoever waits for its correlation."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from rampmeter import positions
from topics import answers, clients, codec
from topics.clock import Clock
from topics.errors import DependencyDown
from topics.records import Chunk, Origin, Reply
from topics.settings import Settings

_POLL_S = 0.1

Answer = Chunk | Reply
Deliver = Callable[[Answer | None], None]
"""Called from the reader's thread with each answer, the terminal reply last; None: nothing comes any more."""
Ended = Callable[[Reply, bytes, Origin], None]
"""Told of every terminal reply with its correlation and where it lies, from the reader's thread; must not block."""


@dataclass(frozen=True, slots=True)
class Start:
    """From where on a topic is read: its end when `since_s` is None."""

    topic: str
    since_s: float | None = None


class Replies:
    """Reads from the time of its making on, so that no answer to what is sent later is missed.  Commits nothing.

    `_waiting` is shared by the threads of the askers, who add and take away, and the reader's, which takes away.
    """

    def __init__(self, settings: Settings, clock: Clock, start: Start, on_end: Ended | None = None) -> None:
        """Block until the broker has said where the topic ends."""
        self._servers, self._clock, self._on_end = settings.kafka.get("bootstrap.servers", ""), clock, on_end
        self._reader = clients.reader(settings)
        self._waiting: dict[bytes, Deliver] = {}
        self._ending = threading.Event()
        self.failure: DependencyDown | None = None
        """Why the reader ended by itself; None while it reads."""
        self.turned_s = clock.mono_s()
        try:
            self._reader.assign(_places(self._reader, start))
        except BaseException:
            self._reader.close()
            raise
        self._thread = threading.Thread(target=self._run, name="replies", daemon=True)
        self._thread.start()

    def expect(self, correlation: bytes, deliver: Deliver) -> None:
        """Deliver what answers this correlation, until its terminal reply."""
        self._waiting[correlation] = deliver
        if not self._thread.is_alive():
            self._end_waits()

    def forget(self, correlation: bytes) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(correlation, None)

    def close(self) -> None:
        """Leave the topic; whoever still waits learns that nothing comes."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                message = self._reader.poll(_POLL_S)
                self.turned_s = self._clock.mono_s()
                if message is not None and message.error() is None:
                    self._take(message)
        except KafkaException as error:
            fix = "Make a new client."
            self.failure = DependencyDown(f"the reply topic: {error.args[0].str()}", self._servers, fix)
        finally:
            self._reader.close()
            self._end_waits()

    def _take(self, message: Message) -> None:
        correlation = _correlation(message)
        if correlation is None or (self._on_end is None and correlation not in self._waiting):
            return
        answer = answers.read(message.value())
        if answer is None:
            return
        deliver = self._waiting.get(correlation)
        if isinstance(answer, Reply):
            self._waiting.pop(correlation, None)
            if self._on_end is not None:
                self._on_end(answer, correlation, _place(message))
        if deliver is not None:
            deliver(answer)

    def _end_waits(self) -> None:
        while self._waiting:
            _, deliver = self._waiting.popitem()
            deliver(None)


def _places(reader: Consumer, start: Start) -> list[TopicPartition]:
    places = {place.partition: place for place in positions.ends(reader, [start.topic])}
    if start.since_s is not None:
        places |= {place.partition: place for place in positions.since(reader, [start.topic], start.since_s)}
    return list(places.values())


def _correlation(message: Message) -> bytes | None:
    headers: object = message.headers()
    if not isinstance(headers, list):
        return None
    return codec.correlation_of(headers)


def _place(message: Message) -> Origin:
    return Origin(topic=message.topic() or "", partition=message.partition() or 0, offset=message.offset() or 0)
