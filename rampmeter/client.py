"""The Python client: send a request to a landing topic and wait for its answer on the reply topic.

Holds a reader that starts at the reply topic's end before anything is sent, so that no answer can be missed.
"""

import base64
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
from confluent_kafka import KafkaError, Message, TopicPartition

from rampmeter import positions, streaming
from rampmeter.signing import Signer
from rampmeter.streaming import Cursor, Pieces
from topics import catalog, clients, codec
from topics.clock import Clock
from topics.errors import DependencyDown, PipelineError
from topics.records import Chunk, Length, Priority, Reply
from topics.settings import Settings
from topics.tokens import Token

POLL_S = 0.2


def new_id() -> str:
    """An id that no one else uses."""
    return uuid.uuid4().hex


class NoAnswer(PipelineError):
    """No terminal reply within the time given; the request may still be answered later."""

    def __init__(self, request_id: str, timeout_s: float) -> None:
        super().__init__(
            f"no answer to {request_id} within {timeout_s:g} s; it may still come. "
            "Ask again with the same id (it is not run or charged twice), or look at `rampmeter lag`."
        )
        self.request_id, self.timeout_s = request_id, timeout_s


@dataclass(frozen=True, slots=True)
class Ask:
    """What to send.  `priority` and `length` choose the landing topic: they are claims that admission verifies."""

    messages: list[dict[str, str]]
    model: str | None = None
    tenant: str = "default"
    priority: Priority = Priority.MEDIUM
    length: Length = Length.SHORT
    max_tokens: int | None = None
    stream: bool = False
    id: str = field(default_factory=new_id)
    deadline_s: float | None = None
    """Unix seconds after which the answer is of no use."""
    source: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the OpenAI body."""
    user_tier: str | None = None
    path: str | None = None

    def body(self) -> bytes:
        """The OpenAI chat body."""
        fields = {"model": self.model, "max_tokens": self.max_tokens, "stream": self.stream or None, **self.extra}
        return msgspec.json.encode(
            {"messages": self.messages, **{name: value for name, value in fields.items() if value is not None}}
        )

    def headers(self, reply_topic: str) -> list[tuple[str, str | bytes | None]]:
        """The claims beside the body; the reply topic's name is complete, prefix included."""
        fields = {
            "rampmeter_id": self.id,
            "rampmeter_tenant": self.tenant,
            "rampmeter_reply_topic": reply_topic,
            "rampmeter_deadline_s": None if self.deadline_s is None else str(self.deadline_s),
            "rampmeter_source": self.source,
            "rampmeter_user_tier": self.user_tier,
            "rampmeter_path": self.path,
        }
        return [(name, value.encode()) for name, value in fields.items() if value is not None]

    def token(self, value: bytes, reply_topic: str, now_s: float, valid_s: float) -> Token:
        """All that `headers` and the landing topic claim, for a signer."""
        return Token(
            id=self.id,
            tenant=self.tenant,
            priority=self.priority,
            sha256=codec.digest(value),
            iat=round(now_s, 3),
            exp=round(now_s + valid_s, 3),
            user_tier=self.user_tier,
            source=self.source,
            path=self.path,
            reply_topic=reply_topic,
        )


class Client:
    """Submits requests of one thread, signed if there is a signer; `reply_topic` is without the prefix."""

    def __init__(
        self, settings: Settings, clock: Clock, reply_topic: str | None = None, signer: Signer | None = None
    ) -> None:
        self._settings, self._clock, self._signer = settings, clock, signer
        self._reply_topic = settings.topic(reply_topic or catalog.default_reply_name(settings))
        self._producer = clients.producer(settings)
        self._reader = clients.reader(settings)
        self._id, self._correlation, self._pieces = "", b"", Pieces()
        try:
            self._read_from(positions.ends(self._reader, [self._reply_topic]))
        except BaseException:
            self._reader.close()
            raise

    def submit(self, ask: Ask, timeout_s: float = 120.0) -> Reply:
        """Send and wait for the terminal reply; raises NoAnswer."""
        for answer in self.stream(ask, timeout_s):
            if isinstance(answer, Reply):
                return answer
        raise NoAnswer(ask.id, timeout_s)

    def stream(self, ask: Ask, timeout_s: float = 120.0) -> Iterator[Chunk | Reply]:
        """Send and yield each chunk as it comes, the terminal reply last; raises NoAnswer.

        When a chunk begins again with `seq` 0, what came is void: another attempt answers.
        """
        deadline_s = self._clock.mono_s() + timeout_s
        self._id, self._correlation, self._pieces = ask.id, self._send(ask), Pieces()
        yield from self._answers(deadline_s, timeout_s)

    @property
    def cursor(self) -> Cursor:
        """Where the reading of the last answer stands: kept, it lets another client go on in another process."""
        correlation = base64.b64encode(self._correlation).decode()
        return Cursor(self._id, correlation, self._reply_topic, dict(self._offsets), self._pieces)

    def resume(self, cursor: Cursor, timeout_s: float = 120.0) -> Iterator[Chunk | Reply]:
        """Yield what lies behind a cursor as `stream` would have; later answers are read from its topic too."""
        deadline_s = self._clock.mono_s() + timeout_s
        self._id, self._correlation, self._pieces = cursor.id, base64.b64decode(cursor.correlation), cursor.pieces
        self._reply_topic = cursor.topic
        self._read_from([TopicPartition(cursor.topic, *place) for place in cursor.offsets.items()])
        yield from self._answers(deadline_s, timeout_s)

    def close(self) -> None:
        """Leave the reply topic."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_from(self, places: list[TopicPartition]) -> None:
        self._reader.assign(places)
        self._offsets = {place.partition: place.offset for place in places}

    def _answers(self, deadline_s: float, timeout_s: float) -> Iterator[Chunk | Reply]:
        while (left_s := deadline_s - self._clock.mono_s()) > 0:
            message = self._reader.poll(min(left_s, POLL_S))
            if message is None or message.error() is not None:
                continue
            self._offsets[message.partition() or 0] = (message.offset() or 0) + 1
            if not _answers(message, self._correlation):
                continue
            answer = codec.decode_answer(message.value() or b"")
            if isinstance(answer, Chunk):
                self._pieces = streaming.take(self._pieces, answer).pieces
            yield answer
            if isinstance(answer, Reply):
                return
        raise NoAnswer(self._id, timeout_s)

    def _send(self, ask: Ask) -> bytes:
        """Send and return the correlation: only it tells the answer from those to others who use the same id."""
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)

        value, correlation = ask.body(), new_id().encode()
        headers = [*ask.headers(self._reply_topic), (codec.CORRELATION_HEADER, correlation)]
        if self._signer is not None:
            token = ask.token(value, self._reply_topic, self._clock.wall_s(), self._signer.valid_s)
            headers.append((codec.TOKEN_HEADER, self._signer.seal(token).encode()))
        tenant = ask.tenant if ask.tenant in self._settings.topics.tenants else None
        topic = catalog.landing(self._settings, ask.priority, ask.length, tenant)
        self._producer.produce(topic, value, ask.tenant.encode(), headers=headers, on_delivery=delivered)
        self._producer.flush()
        if failures:
            servers = self._settings.kafka.get("bootstrap.servers", "")
            raise DependencyDown(f"Kafka did not take the request: {failures[0].str()}", servers, f"Look at {topic}.")
        return correlation


def _answers(message: Message, correlation: bytes) -> bool:
    headers: object = message.headers()
    return isinstance(headers, list) and (codec.CORRELATION_HEADER, correlation) in headers


def text_of(answer: Chunk | Reply) -> str:
    """The text in an OpenAI chunk or completion; empty when there is none."""
    raw = answer.data if isinstance(answer, Chunk) else answer.body
    try:
        choices = msgspec.json.decode(raw, type=_Body).choices
    except msgspec.DecodeError:
        return ""
    return "".join((choice.delta or choice.message or _Text()).content or "" for choice in choices)


class _Text(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Text | None = None
    message: _Text | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] = []
