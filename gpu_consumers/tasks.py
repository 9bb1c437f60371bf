"""Work of the loop that nobody waits for, and the end of work that would go on for ever."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

_AGAIN_S = 0.1


class Tasks(set[asyncio.Task[None]]):
    """Those under way: the loop itself holds no task, and one that nobody holds may vanish."""

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Begin it."""
        task = asyncio.create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)


async def end(tasks: Iterable[asyncio.Task[Any]]) -> list[Any]:
    """Cancel them until each has ended; returns their results and exceptions.

    One cancel may be lost: until Python 3.12 `asyncio.wait_for`, by which the client of Redis writes, drops one that
    meets the end of what it waits for, and the task goes on.
    """
    every = list(tasks)
    left = set(every)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_S)
    return await asyncio.gather(*every, return_exceptions=True)
