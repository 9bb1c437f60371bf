"""The Python client: send requests to landing topics and wait for their answers on the reply topic.

Holds a reader that starts at the reply topic's end before anything is sent, so that no answer can be missed.
"""

import base64
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Self

import msgspec
from confluent_kafka import Message, TopicPartition

from rampmeter import control, positions, state, streaming, tracing
from rampmeter.ask import Ask, Letter, Sender, new_id
from rampmeter.errors import NoAnswer
from rampmeter.posting import Post
from rampmeter.settings import StackSettings
from rampmeter.signing import Signer
from rampmeter.streaming import Cursor, Pieces
from topics import catalog, clients, codec
from topics.clock import Clock, SystemClock
from topics.errors import PipelineError
from topics.records import Chunk, Control, Reply
from topics.settings import Settings, load

__all__ = ["Ask", "Client", "NoAnswer", "Pending", "new_id", "text_of"]

POLL_S = 0.2
DEFAULT_WAIT_S = 120.0


@dataclass(slots=True)
class _Inbox:
    """What came for one request and was not taken yet."""

    id: str
    correlation: bytes
    pieces: Pieces = field(default_factory=Pieces)
    waiting: deque[tuple[Chunk | Reply, TopicPartition]] = field(default_factory=deque)


class Client:
    """Submits requests of one thread and reads their answers; use it in a `with` block.

    ```python
    with rampmeter.Client() as client:
        pending = client.submit(rampmeter.Ask([{"role": "user", "content": "hello"}], tenant="my-team"))
        print(rampmeter.text_of(pending.result(timeout_s=60)))
    ```
    Many may be in flight: one reader serves all of them.  Without settings it takes those of the environment, or the
    local stack that runs in this folder; without `signer` the key of the settings signs, if they have one.
    `reply_topic` is without the prefix.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        clock: Clock | None = None,
        reply_topic: str | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._settings = state.connect(Settings) if settings is None else settings
        self._clock: Clock = SystemClock() if clock is None else clock
        signer = Signer.of(load(StackSettings).signing) if signer is None else signer
        topic = self._settings.topic(reply_topic or catalog.default_reply_name(self._settings))
        self._sender = Sender(self._settings, topic, signer)
        self._inboxes: dict[bytes, _Inbox] = {}
        self._last = _Inbox("", b"")
        self._reader = clients.reader(self._settings)
        try:
            self._read_from(positions.ends(self._reader, [topic]))
            self._post = Post(self._settings)
        except BaseException:
            self._reader.close()
            raise

    def submit(self, ask: Ask) -> "Pending":
        """Send; returns when the broker has the request.  Raises DependencyDown or NotTaken."""
        inbox = _Inbox(ask.id, new_id().encode())
        self._inboxes[inbox.correlation] = self._last = inbox
        letter = self._sender.letter(ask, inbox.correlation, self._clock.wall_s())
        with tracing.sending(ask, letter, self._clock):
            self._send(letter)
        return Pending(ask.id, ask.tenant, self, inbox)

    def stream(self, ask: Ask, timeout_s: float = DEFAULT_WAIT_S) -> Iterator[Chunk | Reply]:
        """Send and yield each chunk as it comes, the terminal reply last; raises NoAnswer.

        When a chunk begins again with `seq` 0, what came is void: another attempt answers.
        """
        yield from self.submit(ask).stream(timeout_s)

    def cancel(self, request_id: str, tenant: str | None = None) -> Control:
        """Order that a request be cancelled wherever it is; returns the order when the broker has it."""
        order = control.cancel_order(self._settings, self._clock, request_id, tenant)
        self._send(control.letter_of(self._settings, order))
        return order

    @property
    def cursor(self) -> Cursor:
        """Where the reading of the last request's answer stands: kept, it lets another client go on elsewhere."""
        inbox, offsets = self._last, dict(self._offsets)
        for _, place in inbox.waiting:
            offsets[place.partition] = min(offsets[place.partition], place.offset)
        correlation = base64.b64encode(inbox.correlation).decode()
        return Cursor(inbox.id, correlation, self._sender.reply_topic, offsets, inbox.pieces)

    def resume(self, cursor: Cursor, timeout_s: float = DEFAULT_WAIT_S) -> Iterator[Chunk | Reply]:
        """Yield what lies behind a cursor as `stream` would have.  For a client that has submitted nothing yet.

        Later answers are read from the cursor's topic too.
        """
        inbox = _Inbox(cursor.id, base64.b64decode(cursor.correlation), cursor.pieces)
        self._inboxes[inbox.correlation] = self._last = inbox
        self._sender = Sender(self._settings, cursor.topic, self._sender.signer)
        self._read_from([TopicPartition(cursor.topic, *place) for place in cursor.offsets.items()])
        yield from self.answers(inbox, timeout_s)

    def answers(self, inbox: _Inbox, timeout_s: float) -> Iterator[Chunk | Reply]:
        """What comes into an inbox, the terminal reply last; raises NoAnswer."""
        until_s = self._clock.mono_s() + timeout_s
        while True:
            while not inbox.waiting:
                left_s = until_s - self._clock.mono_s()
                if left_s <= 0:
                    raise NoAnswer(inbox.id, timeout_s)
                self._poll(min(left_s, POLL_S))
            answer, _ = inbox.waiting.popleft()
            if isinstance(answer, Chunk):
                inbox.pieces = streaming.take(inbox.pieces, answer).pieces
            yield answer
            if isinstance(answer, Reply):
                return

    def close(self) -> None:
        """Leave the reply topic."""
        self._reader.close()
        self._post.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_from(self, places: list[TopicPartition]) -> None:
        self._reader.assign(places)
        self._offsets = {place.partition: place.offset for place in places}

    def _poll(self, timeout_s: float) -> None:
        """Put the next record, if it is for one of ours, into its inbox."""
        message = self._reader.poll(timeout_s)
        if message is None or message.error() is not None:
            return
        place = TopicPartition(message.topic() or "", message.partition() or 0, message.offset() or 0)
        self._offsets[place.partition] = place.offset + 1
        correlation = codec.correlation_of(_headers(message))
        inbox = None if correlation is None else self._inboxes.get(correlation)
        if inbox is None:
            return
        answer = codec.decode_answer(message.value() or b"")
        inbox.waiting.append((answer, place))
        if isinstance(answer, Reply):
            del self._inboxes[inbox.correlation]

    def _send(self, letter: Letter) -> None:
        ends: SimpleQueue[PipelineError | None] = SimpleQueue()
        self._post.send(letter, ends.put)
        if (error := ends.get()) is not None:
            raise error


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that the broker has.  Its answers are read once."""

    id: str
    tenant: str
    _client: Client = field(repr=False)
    _inbox: _Inbox = field(repr=False)

    def result(self, timeout_s: float = DEFAULT_WAIT_S) -> Reply:
        """Wait for the terminal reply; raises NoAnswer, after which it may be called again."""
        for answer in self.stream(timeout_s):
            if isinstance(answer, Reply):
                return answer
        raise NoAnswer(self.id, timeout_s)

    def stream(self, timeout_s: float = DEFAULT_WAIT_S) -> Iterator[Chunk | Reply]:
        """Yield each chunk as it comes, the terminal reply last; raises NoAnswer.

        When a chunk begins again with `seq` 0, what came is void: another attempt answers.
        """
        yield from self._client.answers(self._inbox, timeout_s)

    def cancel(self) -> None:
        """Order that it be cancelled; its reply then says how it ended."""
        self._client.cancel(self.id, self.tenant)


def _headers(message: Message) -> codec.Headers:
    headers: object = message.headers()
    return headers if isinstance(headers, list) else ()


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
