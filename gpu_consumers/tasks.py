"""Work of the loop that nobody waits for."""

import asyncio
from collections.abc import Coroutine


class Tasks(set[asyncio.Task[None]]):
    """Those under way: the loop itself holds no task, and one that nobody holds may vanish."""

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Begin it."""
        task = asyncio.create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
