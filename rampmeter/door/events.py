"""A streamed answer as server-sent events, in OpenAI's format."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web

from rampmeter import streaming
from rampmeter.door import refusals
from rampmeter.door.metrics import Metrics
from rampmeter.door.refusals import Refusal, Refused
from rampmeter.errors import NoAnswer
from rampmeter.streaming import Pieces
from topics.outcomes import Outcome
from topics.records import Chunk, Reply

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"


class Events:
    """One answer on its way to its client.

    The status is sent with the first piece, so that a refusal before it is an ordinary HTTP answer; after it, a fault
    is an event `error`, which OpenAI's clients raise, and the stream ends without `[DONE]`.
    """

    def __init__(self, request: web.Request, request_id: str, headers: dict[str, str], metrics: Metrics) -> None:
        self._request, self._id, self._metrics = request, request_id, metrics
        self._response = web.StreamResponse(headers={**_HEADERS, **headers})
        self._pieces = Pieces()

    async def send(self, answers: AsyncIterator[Chunk | Reply]) -> web.StreamResponse:
        """Pass on what comes until the end; raises Refused or NoAnswer while nothing was sent yet."""
        try:
            async for answer in answers:
                fault = await (self._piece(answer) if isinstance(answer, Chunk) else self._end(answer))
                if fault is not None:
                    return await self._break(fault)
        except NoAnswer as error:
            if not self._response.prepared:
                raise
            return await self._break(refusals.too_late(self._id, error.timeout_s))
        return self._response

    async def _piece(self, chunk: Chunk) -> Refusal | None:
        taken = streaming.take(self._pieces, chunk)
        if taken.begins_again:
            return _RESTARTED
        self._pieces = taken.pieces
        await self._write(bytes(chunk.data))
        return None

    async def _end(self, reply: Reply) -> Refusal | None:
        if reply.outcome is not Outcome.COMPLETED:
            return refusals.of_reply(reply)
        if self._pieces.next_seq == 0:
            await self._write(whole(bytes(reply.body)))
        elif self._pieces.lacks(reply):
            return _INCOMPLETE
        await self._response.write(DONE)
        await self._response.write_eof()
        return None

    async def _break(self, fault: Refusal) -> web.StreamResponse:
        if not self._response.prepared:
            raise Refused(fault)
        self._metrics.breaks.inc()
        await self._write(msgspec.json.encode(fault.body(self._id)))
        await self._response.write_eof()
        return self._response

    async def _write(self, data: bytes) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)
        await self._response.write(b"data: " + data + b"\n\n")


def whole(body: bytes) -> bytes:
    """A whole completion as the one chunk of a stream: an answer that came without pieces."""
    completion: dict[str, Any] = msgspec.json.decode(body)
    choices = [
        {**{name: value for name, value in choice.items() if name != "message"}, "delta": choice.get("message") or {}}
        for choice in completion.get("choices") or ()
    ]
    return msgspec.json.encode({**completion, "object": "chat.completion.chunk", "choices": choices})


_RESTARTED = Refusal(
    502, "stream_restarted", "the engine failed and the answer begins again; fetch it whole by its id", refusals.SERVER
)
_INCOMPLETE = Refusal(
    502, "stream_incomplete", "pieces of the stream never came; fetch the answer whole by its id", refusals.SERVER
)
