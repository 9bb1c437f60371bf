"""A small OpenAI-compatible server on a free port, which does as the test says."""

import asyncio
import json
import threading
from contextlib import asynccontextmanager

from aiohttp import web

WORDS = ("one", " two", " three", " four")


class OpenAiServer:
    """Streams `words`; remembers the bodies it got and the requests whose client left."""

    def __init__(self):
        self.url, self.port, self._runner = "", 0, None
        self.bodies, self.headers = [], []
        self.left = 0
        self.words = WORDS
        self.status, self.answer = 200, b""
        """Any other status is answered with this body."""
        self.retry_after = None
        """The header of that answer."""
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
            headers = {} if self.retry_after is None else {"Retry-After": self.retry_after}
            return web.Response(status=self.status, body=self.answer, headers=headers)
        if not json.loads(self.bodies[-1]).get("stream"):
            return self._whole(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._stream(request, response, json.loads(self.bodies[-1]))
        except (ConnectionError, asyncio.CancelledError):
            self.left += 1
            raise
        return response

    def _whole(self, request):
        if self.break_after is not None:
            request.transport.abort()
        if self.error_after is not None:
            return web.json_response({"error": self.stream_error}, status=500)
        return web.json_response({"object": "chat.completion", "choices": [{"message": {"content": "one"}}]})

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
        if self.sends_usage and body.get("stream_options", {}).get("include_usage"):
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

    async def come_back(self):
        """Listen again, where it did before."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.complete)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    async def go_away(self):
        """Refuse connections."""
        await self._runner.cleanup()


@asynccontextmanager
async def serve(server=None):
    """A running OpenAiServer."""
    server = server or OpenAiServer()
    await server.come_back()
    try:
        yield server
    finally:
        await server.go_away()


class Hosted:
    """An OpenAiServer on a loop in a thread of its own."""

    def __init__(self, server=None):
        self.server, self.loop, ready = server or OpenAiServer(), asyncio.new_event_loop(), threading.Event()
        self._stop = asyncio.Event()

        async def main():
            async with serve(self.server):
                ready.set()
                await self._stop.wait()

        self._thread = threading.Thread(target=self.loop.run_until_complete, args=(main(),))
        self._thread.start()
        assert ready.wait(10)

    def call(self, work):
        asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def close(self):
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
