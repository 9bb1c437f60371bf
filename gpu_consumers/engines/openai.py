"""Any OpenAI-compatible HTTP server as an engine.

Every job is streamed from the server, so that its first token is seen and a disconnect aborts it; the whole answer is
put together again from the chunks.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from gpu_consumers.engine import Finished, Job, Load, Piece
from gpu_consumers.engines import openai_request
from gpu_consumers.engines.completions import Assembly
from gpu_consumers.engines.waits import Waits
from topics.errors import EngineError
from topics.records import Tokens

MAX_ERROR_BYTES = 65_536
_decode = msgspec.json.Decoder().decode
_Chunk = tuple[bytes, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class OpenAiOptions:
    """Which server, and how long to wait for it."""

    base_url: str = "http://127.0.0.1:8000/v1"
    """Up to and including `/v1`."""
    api_key: str | None = field(default=None, repr=False)
    model_names: Mapping[str, str] = field(default_factory=dict)
    """The server's names of our models, where they differ."""
    connect_timeout_s: float = 5.0
    silence_timeout_s: float = 600.0
    """Longest wait for the next piece.  Too small: long prompts fail.  Too large: a hung server holds its jobs."""
    max_line_bytes: int = 4_000_000
    """Largest single chunk."""


class OpenAiEngine:
    """A client of one server; made and used on one event loop."""

    def __init__(self, options: OpenAiOptions) -> None:
        self._options = options
        self._running = 0
        self._waits = Waits()
        headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
        self._session = aiohttp.ClientSession(
            headers={**headers, "Content-Type": "application/json"},
            # The consumer's window bounds the connections.  A reused one may be closing at the server's end, and a
            # request lost in it must not be sent twice: next to a generation a new connection costs nothing.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=options.connect_timeout_s, sock_read=options.silence_timeout_s
            ),
        )

    def load(self) -> Load:
        """Our own jobs; what the server holds besides is unknown."""
        return Load(running=self._running, waiting=0, free_kv_tokens=None, total_kv_tokens=None)

    async def run(self, job: Job) -> AsyncGenerator[Piece | Finished, None]:
        """See the protocol; leaving early disconnects, upon which servers abort."""
        outgoing = openai_request.prepare(job, self._options.model_names)
        assembly = Assembly()
        held: list[bytes] = []  # chunks before the first token, such as the one that only names the role
        has_token = False
        token_chunks = 0
        self._running += 1
        try:
            async with aclosing(self._chunks(outgoing.body, job)) as chunks:
                while (chunk := await self._waits.next(chunks)) is not None:
                    data, fields = chunk
                    if assembly.add(fields):
                        token_chunks += 1
                        job.progress.output_tokens = token_chunks  # a chunk is about a token
                    if job.stream and (fields.get("choices") or outgoing.wants_usage):
                        held.append(data)
                    if not token_chunks:
                        continue
                    if not has_token and not job.stream:
                        yield Piece(b"")
                    has_token = True
                    for piece in held:
                        yield Piece(piece)
                    held.clear()
        finally:
            self._running -= 1
        if not has_token:
            raise EngineError("the server's stream ended without an answer", retryable=True)
        # A server that ignores include_usage leaves the estimates: a chunk is about a token.
        tokens = assembly.tokens or Tokens(prompt=job.prompt_tokens, output=token_chunks)
        yield Finished(assembly.body(), tokens, assembly.engine_s)

    async def close(self) -> None:
        """Jobs that run end with a retryable error."""
        self._waits.close()
        await self._session.close()

    async def _chunks(self, body: bytes, job: Job) -> AsyncGenerator[_Chunk, None]:
        url = f"{self._options.base_url.rstrip('/')}/chat/completions"
        response = None
        try:
            response = await self._session.post(url, data=body, allow_redirects=False)
            if response.status != 200:
                answer = await response.content.read(MAX_ERROR_BYTES)
                raise openai_request.refusal(response.status, answer, job.body)
            async for data in self._events(response):
                fields = _decode(data)
                if "error" in fields:
                    raise openai_request.broken_stream(fields["error"], job.body)
                yield data, fields
        except (aiohttp.ClientError, TimeoutError, ConnectionError, msgspec.MsgspecError) as error:
            # The text of these may hold the address and the bytes received: the kind is enough.
            raise EngineError(f"the server failed: {type(error).__name__}", retryable=True) from error
        finally:
            if response is not None:
                response.close()

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The data of server-sent events up to the end mark; raises when the stream ends before it."""
        rest = b""
        async for block in response.content.iter_any():
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield data
            if len(rest) > self._options.max_line_bytes:
                raise EngineError(f"a chunk exceeds {self._options.max_line_bytes} bytes", retryable=False)
        raise EngineError("the server broke off within its answer", retryable=True)
