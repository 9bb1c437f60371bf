"""A TCP proxy on loopback that delays, cuts and swallows: the network between clients and a server at its worst."""

import asyncio
import contextlib
import threading

from topics.local_process import HOST

CHUNK_BYTES = 65_536
WAITING_CHUNKS = 256
"""Bound of what one direction of a connection holds; then the sender waits."""
CALL_S = 10.0


class Proxy:
    """Carries connections to one port, on a loop in a thread of its own; a context.

    What it swallows is late and not lost, as TCP would have it: it arrives at the end of the black hole, also when its
    sender has given up the connection by then.
    """

    def __init__(self, target_port):
        self._target_port = target_port
        self._delay_s, self._flows, self._open = 0.0, asyncio.Event(), set()
        self._flows.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, HOST, 0))
        self.port = self._server.sockets[0].getsockname()[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()

    def delay(self, seconds):
        """Let everything that comes from now on arrive that much later, in each direction."""
        self._delay_s = seconds

    def swallow(self):
        """Let nothing through, and say nothing of it."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def cut(self):
        """End all connections at once; what is on the way is lost.  New ones are welcome."""
        self._call(self._cut())

    def heal(self):
        """Carry as at the beginning."""
        self._delay_s = 0.0
        self._loop.call_soon_threadsafe(self._flows.set)

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_S)

    async def _cut(self):
        for writer in list(self._open):
            writer.transport.abort()

    async def _stop(self):
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader, writer):
        self._open.add(writer)
        try:
            await self._flows.wait()
            if writer.transport.is_closing():
                raise ConnectionAbortedError
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            self._open.discard(writer)
            writer.transport.abort()
            return
        self._open.add(far_writer)
        ways = [asyncio.create_task(self._carry(*way)) for way in ((reader, far_writer), (far_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, far_writer):
                self._open.discard(end)
                end.transport.abort()

    async def _carry(self, reader, writer):
        """One direction, until its sender ends it and all of it has arrived."""
        under_way = asyncio.Queue(WAITING_CHUNKS)
        sending = asyncio.create_task(self._send(under_way, writer))
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(CHUNK_BYTES):
                    await under_way.put((self._loop.time() + self._delay_s, data))
            await under_way.put(None)
            await sending
        finally:
            sending.cancel()

    async def _send(self, under_way, writer):
        with contextlib.suppress(OSError):
            while (item := await under_way.get()) is not None:
                due_s, data = item
                await asyncio.sleep(max(0.0, due_s - self._loop.time()))
                await self._flows.wait()
                writer.write(data)
                await writer.drain()


def listeners(ports, **advertised):
    """Properties of a broker with more listeners, which tell their clients to come through proxies.

    `ports` has one for each, for `client` and for `controller`; `advertised` are the proxies'.
    """
    names = {name: name.upper() for name in advertised}
    plain = f"PLAINTEXT://{HOST}:{ports['client']}"
    return {
        "listeners": ",".join(
            [plain, f"CONTROLLER://{HOST}:{ports['controller']}"]
            + [f"{listener}://{HOST}:{ports[name]}" for name, listener in names.items()]
        ),
        "advertised.listeners": ",".join(
            [plain, *(f"{listener}://{HOST}:{advertised[name]}" for name, listener in names.items())]
        ),
        "controller.quorum.voters": f"1@{HOST}:{ports['controller']}",
        "listener.security.protocol.map": ",".join(
            f"{listener}:PLAINTEXT" for listener in ("PLAINTEXT", "CONTROLLER", *names.values())
        ),
    }
