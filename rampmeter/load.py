"""Send requests at their intended times whatever comes back (open loop), and collect the replies beside it."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from time import sleep

from confluent_kafka import KafkaError, Message, Producer

from rampmeter import positions
from rampmeter.fleet import Fleet
from rampmeter.output import Advance
from rampmeter.results import Answer, Observed
from topics import catalog, clients, codec
from topics.clock import Clock
from topics.errors import DependencyDown
from topics.records import Chunk, Reply
from topics.settings import Settings

LEAD_S = 0.3
"""Between the start and the first request, so that the first is not late."""
POLL_S = 0.1
TICK_S = 0.2
BATCH = 500


@dataclass(frozen=True, slots=True)
class Shot:
    """One request to send, `at_s` after the start."""

    at_s: float
    id: str
    topic: str
    tenant: str
    value: Callable[[], bytes]
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """Something else to do `at_s` after the start."""

    at_s: float
    do: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait after the last request: for replies, and then for replies that should not come."""

    drain_s: float = 120.0
    settle_s: float = 1.0
    shrink_s: float = 0.0
    """Wait at most this long for the fleet to be back at its fewest consumers."""


class Collector:
    """Reads the reply topic and telemetry from now on, in a thread of its own; `close` ends it."""

    def __init__(self, settings: Settings, clock: Clock, pool: str = "default") -> None:
        self._clock = clock
        self.fleet = Fleet(pool)
        self.answers: dict[str, Answer] = {}
        self.duplicates = 0
        self.failure: Exception | None = None
        self._first_chunk_s: dict[str, float] = {}
        self._telemetry = settings.topic("telemetry")
        self._reader = clients.reader(settings)
        replies = settings.topic(catalog.default_reply_name(settings))
        self._reader.assign(positions.ends(self._reader, [replies, self._telemetry]))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, name="replies", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        self._thread.join()
        self._reader.close()

    def _read(self) -> None:
        try:
            while not self._closing.is_set():
                for message in self._reader.consume(BATCH, POLL_S):
                    if message.error() is None:
                        self._take(message)
                self.fleet.sample(self._clock.wall_s())
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits for the replies
            self.failure = error

    def _take(self, message: Message) -> None:
        value = message.value() or b""
        if message.topic() == self._telemetry:
            if value:
                self.fleet.note(codec.decode_telemetry(value))
            return
        record = codec.decode_answer(value)
        if isinstance(record, Chunk):
            self._first_chunk_s.setdefault(record.id, self._clock.wall_s())
        elif record.id not in self.answers:
            self.answers[record.id] = self._answer(record)
        elif not record.repeat:
            self.duplicates += 1

    def _answer(self, reply: Reply) -> Answer:
        first_s = self._first_chunk_s.pop(reply.id, None)
        if first_s is None and reply.timing is not None:
            first_s = reply.timing.first_token_s
        now_s = self._clock.wall_s()
        return Answer(reply.outcome, reply.length, now_s, first_s, reply.retry_after_s, reply.tenant, reply.waits)


class _Sender:
    """The producer and what it has sent so far."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._producer: Producer = clients.producer(settings)
        self._clock = clock
        self._servers = settings.kafka.get("bootstrap.servers", "")
        self.intended_s: dict[str, float] = {}
        self.late_s = 0.0
        self.failure: str | None = None

    def send(self, shot: Shot, intended_s: float) -> None:
        self.intended_s[shot.id] = intended_s
        self.late_s = max(self.late_s, self._clock.wall_s() - intended_s)
        headers = {"rampmeter_id": shot.id, **shot.headers}
        while True:
            try:
                self._producer.produce(
                    shot.topic,
                    shot.value(),
                    shot.tenant.encode(),
                    headers=[(name, value.encode()) for name, value in headers.items()],
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(POLL_S)
            else:
                self._producer.poll(0)
                break

    def flush(self) -> None:
        self._producer.flush()
        if self.failure:
            raise DependencyDown(f"Kafka did not take a request: {self.failure}", self._servers, "Look at the broker.")

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.failure = error.str()


def run(
    settings: Settings,
    plan: Iterable[Shot | Action],
    clock: Clock,
    advance: Advance,
    patience: Patience = Patience(),
) -> Observed:
    """Send everything, wait for the replies, and return what was seen.  `plan` is in order of `at_s`."""
    sender = _Sender(settings, clock)
    with contextlib.closing(Collector(settings, clock)) as replies:
        _send_all(sender, replies, plan, clock, advance)
        deadline_s = clock.mono_s() + patience.drain_s
        while len(replies.answers) < len(sender.intended_s) and clock.mono_s() < deadline_s:
            _tick(sender, replies, advance, clock)
        shrunk_by_s = clock.mono_s() + patience.shrink_s
        while not replies.fleet.is_shrunk(clock.wall_s()) and clock.mono_s() < shrunk_by_s:
            _tick(sender, replies, advance, clock)
        quiet_until_s = clock.mono_s() + patience.settle_s
        while clock.mono_s() < quiet_until_s:
            _tick(sender, replies, advance, clock)
    fleet = replies.fleet
    answers = {key: answer for key, answer in replies.answers.items() if key in sender.intended_s}
    replicas = None if fleet.low is None or fleet.high is None else (fleet.low, fleet.high)
    return Observed(sender.intended_s, answers, replies.duplicates, replicas, sender.late_s)


def _send_all(
    sender: _Sender, replies: Collector, plan: Iterable[Shot | Action], clock: Clock, advance: Advance
) -> None:
    start_wall_s, start_mono_s = clock.wall_s() + LEAD_S, clock.mono_s() + LEAD_S
    tell_s = start_mono_s
    for step in plan:
        while True:
            now_s = clock.mono_s()
            if now_s >= tell_s:
                _tell(sender, replies, advance, clock)
                tell_s = now_s + TICK_S
            left_s = start_mono_s + step.at_s - now_s
            if left_s <= 0:
                break
            sleep(min(left_s, TICK_S))
        if isinstance(step, Action):
            step.do()
        else:
            sender.send(step, start_wall_s + step.at_s)
    sender.flush()


def _tick(sender: _Sender, replies: Collector, advance: Advance, clock: Clock) -> None:
    sleep(TICK_S)
    _tell(sender, replies, advance, clock)


def _tell(sender: _Sender, replies: Collector, advance: Advance, clock: Clock) -> None:
    if replies.failure is not None:
        raise replies.failure
    sent, replied = len(sender.intended_s), len(replies.answers)
    advance(replied, f"replies, {sent} sent, {replies.fleet.size(clock.wall_s())} consumers")


def planned(*plans: Iterable[Shot | Action]) -> Iterator[Shot | Action]:
    """Several plans in one order of time."""
    return merge(*plans, key=lambda step: step.at_s)
