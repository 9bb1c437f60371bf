"""Any OpenAI-compatible HTTP server as an engine.

Every job is streamed from the server, so that its first token is seen and a disconnect aborts it; the whole answer is
put together again from the chunks.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import aiohttp
import msgspec

from gpu_consumers.engine import Finished, Job, Load, Piece
from gpu_consumers.engines import openai_request
from gpu_consumers.engines.completions import Assembly
from gpu_consumers.engines.openai_options import OpenAiOptions
from gpu_consumers.engines.server_watch import ServerWatch
from gpu_consumers.engines.waits import Waits
from topics.clock import Clock
from topics.errors import EngineError
from topics.records import Tokens

MAX_ERROR_BYTES = 65_536
_decode = msgspec.json.Decoder().decode
_Chunk = tuple[bytes, dict[str, Any]]


class OpenAiEngine:
    """A client of one server; made and used on one event loop."""

    def __init__(self, options: OpenAiOptions, clock: Clock) -> None:
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
        self.watch = ServerWatch(self._session, options, clock)

    def load(self) -> Load:
        """Our own jobs; what the server holds besides is unknown."""
        return Load(self._running, waiting=0, free_kv_tokens=None, total_kv_tokens=None, closed=self.watch.closed())

    async def run(self, job: Job) -> AsyncGenerator[Piece | Finished, None]:
        """See the protocol; leaving early disconnects, upon which servers abort."""
        if (closed := self.watch.closed()) is not None:
            raise EngineError(closed, retryable=True, untried=True)
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
        self.watch.close()
        await self._session.close()

    async def _chunks(self, body: bytes, job: Job) -> AsyncGenerator[_Chunk, None]:
        response = None
        try:
            trace = {} if job.trace is None else job.trace.texts()
            response = await self._session.post(self.watch.url, data=body, headers=trace, allow_redirects=False)
            if response.status != 200:
                answer = await response.content.read(MAX_ERROR_BYTES)
                self.watch.refused(response.status, response.headers.get("Retry-After"), job)
                raise openai_request.refusal(response.status, answer, job.body)
            async for data in self._events(response, job):
                fields = _decode(data)
                if "error" in fields:
                    self.watch.failed(job)
                    raise openai_request.broken_stream(fields["error"], job.body)
                yield data, fields
            self.watch.answered()
        except (aiohttp.ClientError, TimeoutError, ConnectionError, msgspec.MsgspecError) as error:
            self.watch.failed(job)
            was_sent = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            # The text of these may hold the address and the bytes received: the kind is enough.
            told = f"the server failed: {type(error).__name__}"
            raise EngineError(told, retryable=True, untried=not was_sent) from error
        finally:
            if response is not None:
                response.close()

    async def _events(self, response: aiohttp.ClientResponse, job: Job) -> AsyncIterator[bytes]:
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
        self.watch.failed(job)
        raise EngineError("the server broke off within its answer", retryable=True)
