"""Acknowledgement in the order of reading of events that finish in any order."""

import asyncio
from collections import deque
from collections.abc import Sequence

from faust.types import TP, EventT


class InOrder:
    """Acknowledges the events of a partition in the order in which they were added, in whatever order they finish.

    One writer, the event loop.  Invariant: an acknowledged event has no unfinished one before it in its partition.
    What was read before a rebalance stands by itself, so that it holds up nothing that was read after.
    """

    def __init__(self) -> None:
        """Start with nothing pending."""
        self._waiting: dict[tuple[TP, int | None], deque[EventT]] = {}
        self._finished: set[tuple[TP, int | None, int]] = set()
        self._pending = 0
        self._freed = asyncio.Event()

    @property
    def pending(self) -> int:
        """Events that were added and are not acknowledged."""
        return self._pending

    def add(self, events: Sequence[EventT]) -> None:
        """Take note of events in the order in which they were read."""
        for event in events:
            message = event.message
            self._waiting.setdefault((message.tp, message.generation_id), deque()).append(event)
        self._pending += len(events)

    def done(self, event: EventT) -> None:
        """All that came of an added event is with the broker: acknowledge what no longer waits for one before it."""
        read = (event.message.tp, event.message.generation_id)
        self._finished.add((*read, event.message.offset))
        waiting = self._waiting[read]
        while waiting and (*read, waiting[0].message.offset) in self._finished:
            head = waiting.popleft()
            self._finished.remove((*read, head.message.offset))
            self._pending -= 1
            head.ack()
            self._freed.set()
        if not waiting:
            del self._waiting[read]

    async def wait_room(self, limit: int) -> None:
        """Return when fewer than `limit` events are pending."""
        while self._pending >= limit:
            self._freed.clear()
            await self._freed.wait()
