"""A small OpenAI-compatible server on a free port, which does as the test says."""

import asyncio
import json
from contextlib import asynccontextmanager

from aiohttp import web

WORDS = ("one", " two", " three", " four")


class OpenAiServer:
    """Streams `words`; remembers the bodies it got and the requests whose client left."""

    def __init__(self):
        self.url = ""
        self.bodies, self.headers = [], []
        self.left = 0
        self.words = WORDS
        self.status, self.answer = 200, b""
        """Any other status is answered with this body."""
        self.pause_s = 0.0
        """Before each word."""
        self.break_after = None
        """Drop the connection after so many words."""
        self.error_after = None
        """Send `stream_error` after so many words, as vLLM does, and end."""
        self.stream_error = {"message": "engine dead", "code": 500}
        self.sends_usage = True
        self.cached_tokens = None

    async def complete(self, request):
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        if self.status != 200:
            return web.Response(status=self.status, body=self.answer)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._stream(request, response, json.loads(self.bodies[-1]))
        except (ConnectionError, asyncio.CancelledError):
            self.left += 1
            raise
        return response

    async def _stream(self, request, response, body):
        words = self.words[: body.get("max_tokens") or None]
        await self._send(response, self._chunk({"role": "assistant", "content": ""}))
        for number, word in enumerate(words):
            if number == self.break_after:
                request.transport.abort()
                return
            if number == self.error_after:
                await self._send(response, {"error": self.stream_error})
                return
            await asyncio.sleep(self.pause_s)
            await self._send(response, self._chunk({"content": word}))
        await self._send(response, self._chunk({}, "stop"))
        if self.sends_usage and body["stream_options"]["include_usage"]:
            usage = {"prompt_tokens": 7, "completion_tokens": len(words), "total_tokens": 7 + len(words)}
            if self.cached_tokens is not None:
                usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
            await self._send(response, {**self._chunk({}), "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")

    def _chunk(self, delta, finish_reason=None):
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    async def _send(self, response, data):
        await response.write(f"data: {json.dumps(data)}\n\n".encode())


@asynccontextmanager
async def serve(server=None):
    """A running OpenAiServer."""
    server = server or OpenAiServer()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.complete)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()
