"""Brings what all agents have read into common micro-batches: one Redis call and one broker wait for all of them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from streams.holding import Pending

LOOPS = 2
"""While one waits for Redis or the broker, another builds and sends.  More would only make the batches smaller."""


class Pump:
    """Merges batches that arrive while it is busy, on the event loop.  Each agent has one of its own in it at most."""

    def __init__(self, carry_out: Callable[[Sequence[Pending]], Awaitable[None]], most: int) -> None:
        """`carry_out` ends each pending request or lets it wait elsewhere; `most`: no batch joins as many as that."""
        self._carry_out, self._most = carry_out, most
        self._queue: deque[tuple[Sequence[Pending], asyncio.Future[None]]] = deque()
        self._filled = asyncio.Event()

    async def carry_out(self, pendings: Sequence[Pending]) -> None:
        """Return when all of these have been carried out."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((pendings, done))
        self._filled.set()
        await done

    async def run(self) -> None:
        """Work for ever; `LOOPS` of these run side by side."""
        while True:
            await self._filled.wait()
            taken, count = [], 0
            while self._queue and count < self._most:
                taken.append(self._queue.popleft())
                count += len(taken[-1][0])
            if not self._queue:
                self._filled.clear()
            if taken:
                await self._carry_out([pending for pendings, _ in taken for pending in pendings])
                for _, done in taken:
                    if not done.done():  # its agent was ended meanwhile
                        done.set_result(None)
