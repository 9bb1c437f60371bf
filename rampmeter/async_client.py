"""The asyncio client: many requests in flight, one reader of the reply topic for all of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self, TypeVar

from rampmeter import control, state, tracing
from rampmeter.ask import Ask, Letter, Sender, new_id
from rampmeter.errors import ClientClosed, NoAnswer
from rampmeter.posting import Post
from rampmeter.replies import Answer, Ended, Replies, Start
from rampmeter.settings import StackSettings
from rampmeter.signing import Signer
from topics import catalog
from topics.clock import Clock, SystemClock
from topics.errors import PipelineError
from topics.records import Chunk, Control, Reply
from topics.settings import Settings, load

DEFAULT_WAIT_S = 120.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """How a client reads answers, where it is not to be as it comes.  `topic` is without the prefix."""

    topic: str | None = None
    since_s: float | None = None
    """Unix seconds: also tell `on_end` of what was answered since then."""
    on_end: Ended | None = None
    mark: bytes = b""
    """At the beginning of each correlation of this client; the request's id follows, and a point."""


class AsyncClient:
    """Submits requests and awaits their answers; use it in an `async with` block, from one event loop.

    ```python
    async with rampmeter.AsyncClient() as client:
        pending = await client.submit(rampmeter.Ask([{"role": "user", "content": "hello"}], tenant="my-team"))
        print(rampmeter.text_of(await pending.result(timeout_s=60)))
    ```
    Without settings it takes those of the environment, or the local stack that runs in this folder.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        clock: Clock | None = None,
        reading: Reading | None = None,
        signer: Signer | None = None,
    ) -> None:
        """Nothing is connected yet.  Without `signer` the key of the settings signs, if they have one."""
        self._settings = state.connect(Settings) if settings is None else settings
        self._clock: Clock = SystemClock() if clock is None else clock
        self._reading = reading or Reading()
        self._signer = Signer.of(load(StackSettings).signing) if signer is None else signer
        topic = self._settings.topic(self._reading.topic or catalog.default_reply_name(self._settings))
        self._sender = Sender(self._settings, topic, self._signer)
        self._held = ExitStack()
        self._parts: _Parts | None = None

    async def __aenter__(self) -> Self:
        """Connect; raises DependencyDown or ConfigError."""
        self._parts = await asyncio.to_thread(self._connect)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what is not sent yet and leave the reply topic; whoever still waits gets ClientClosed."""
        self._parts = None
        await asyncio.to_thread(self._held.close)

    async def submit(self, ask: Ask) -> "PendingAnswer":
        """Send; returns when the broker has the request.  Raises DependencyDown, NotTaken or ClientClosed."""
        parts = self._connected()
        correlation = self._reading.mark + f"{ask.id}.{new_id()}".encode()
        loop, inbox = asyncio.get_running_loop(), asyncio.Queue[Answer | None]()
        parts.replies.expect(correlation, _into(loop, inbox.put_nowait))
        try:
            letter = self._sender.letter(ask, correlation, self._clock.wall_s())
            with tracing.sending(ask, letter, self._clock):
                await self._deliver(parts, letter)
        except BaseException:
            parts.replies.forget(correlation)
            raise
        return PendingAnswer(ask.id, ask.tenant, self, self._clock, inbox, lambda: parts.replies.forget(correlation))

    async def stream(self, ask: Ask, timeout_s: float = DEFAULT_WAIT_S) -> AsyncIterator[Answer]:
        """Send and yield each chunk as it comes, the terminal reply last; raises NoAnswer."""
        async for answer in (await self.submit(ask)).stream(timeout_s):
            yield answer

    async def cancel(self, request_id: str, tenant: str | None = None) -> Control:
        """Order that a request be cancelled wherever it is; returns the order when the broker has it."""
        order = control.cancel_order(self._settings, self._clock, request_id, tenant)
        await self._deliver(self._connected(), control.letter_of(self._settings, order))
        return order

    def cancel_soon(self, request_id: str, tenant: str | None = None) -> None:
        """The same without waiting, for whoever is being cancelled himself."""
        order = control.cancel_order(self._settings, self._clock, request_id, tenant)
        self._connected().post.send(control.letter_of(self._settings, order), lambda _error: None)

    def is_broker_there(self, timeout_s: float) -> bool:
        """Whether Kafka answers; blocks, from any thread."""
        return self._parts is not None and self._parts.post.is_broker_there(timeout_s)

    def complaint(self, silent_s: float) -> str | None:
        """What is wrong with the reading of answers, if anything: it ended, or it stood still for so long."""
        parts = self._parts
        if parts is None:
            return "not connected"
        if parts.replies.failure is not None:
            return str(parts.replies.failure)
        unturned_s = self._clock.mono_s() - parts.replies.turned_s
        return f"the reply topic was not looked at for {unturned_s:.0f} s" if unturned_s > silent_s else None

    def _connect(self) -> "_Parts":
        with ExitStack() as made:
            start = Start(self._sender.reply_topic, self._reading.since_s)
            replies = Replies(self._settings, self._clock, start, self._reading.on_end)
            made.callback(replies.close)
            post = Post(self._settings)
            made.callback(post.close)
            self._held = made.pop_all()
        return _Parts(post, replies)

    def _connected(self) -> "_Parts":
        if self._parts is None:
            raise ClientClosed
        if self._parts.replies.failure is not None:
            raise self._parts.replies.failure
        return self._parts

    async def _deliver(self, parts: "_Parts", letter: Letter) -> None:
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[PipelineError | None] = loop.create_future()
        parts.post.send(letter, _into(loop, lambda error: None if sent.done() else sent.set_result(error)))
        if (error := await sent) is not None:
            raise error


@dataclass(slots=True)
class PendingAnswer:
    """A request that the broker has.  Its answers are read once, by one reader."""

    id: str
    tenant: str
    _client: AsyncClient = field(repr=False)
    _clock: Clock = field(repr=False)
    _inbox: asyncio.Queue[Answer | None] = field(repr=False)
    _forget: Callable[[], None] = field(repr=False)

    async def result(self, timeout_s: float = DEFAULT_WAIT_S) -> Reply:
        """Wait for the terminal reply; raises NoAnswer, after which it may be called again."""
        async for answer in self.stream(timeout_s):
            if isinstance(answer, Reply):
                return answer
        raise NoAnswer(self.id, timeout_s)

    async def stream(self, timeout_s: float = DEFAULT_WAIT_S) -> AsyncIterator[Answer]:
        """Yield each chunk as it comes, the terminal reply last; raises NoAnswer.

        When a chunk begins again with `seq` 0, what came is void: another attempt answers.
        """
        until_s = self._clock.mono_s() + timeout_s
        answer: Answer | None = None
        while answer is None or isinstance(answer, Chunk):
            try:
                async with asyncio.timeout(until_s - self._clock.mono_s()):
                    answer = await self._inbox.get()
            except TimeoutError:
                raise NoAnswer(self.id, timeout_s) from None
            if answer is None:
                raise ClientClosed
            yield answer

    async def cancel(self) -> None:
        """Order that it be cancelled; its reply then says how it ended."""
        await self._client.cancel(self.id, self.tenant)

    def abandon(self) -> None:
        """Wait for no more of its answers."""
        self._forget()


@dataclass(frozen=True, slots=True)
class _Parts:
    post: Post
    replies: Replies


def _into(loop: asyncio.AbstractEventLoop, take: Callable[[T], None]) -> Callable[[T], None]:
    """Call `take` in the loop, from any thread; a loop that has ended needs nothing any more."""

    def hand_over(value: T) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(take, value)

    return hand_over
