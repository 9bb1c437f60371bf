"""An OpenAI-compatible server whose engine takes whole batches: all of one run at once and end at once."""

import asyncio
import json
import threading
from contextlib import contextmanager

from tests.support.openai_server import OpenAiServer, serve

GATHER_S = 0.3
"""What has come this long after the first is the batch.  Generous, since a busy machine sends late."""


class BatchServer(OpenAiServer):
    """Remembers the models of each batch, and how many requests came while one ran."""

    def __init__(self):
        super().__init__()
        self.batches, self.came_late = [], 0
        self._gathering = None
        self._runs = False

    async def complete(self, request):
        model = json.loads(await request.read())["model"]
        self.came_late += self._runs
        if self._gathering is None:
            self.batches.append([])
            self._gathering = asyncio.create_task(self._gather())
        self.batches[-1].append(model)
        await asyncio.shield(self._gathering)
        try:
            return await super().complete(request)
        finally:
            self._runs = False

    async def _gather(self):
        await asyncio.sleep(GATHER_S)
        self._gathering, self._runs = None, True


@contextmanager
def in_a_thread(server):
    """The server on a loop of its own, for a test that waits for other processes."""
    ready, stopped = threading.Event(), []

    async def run():
        stopping = asyncio.Event()
        stopped.append((asyncio.get_running_loop(), stopping))
        async with serve(server):
            ready.set()
            await stopping.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop, stopping = stopped[0]
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
