"""Items that gather while their worker is busy, so that its next turn serves all of them at once."""

import asyncio
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Worklist(Generic[T]):
    """Filled and emptied on one event loop."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._filled = asyncio.Event()

    def add(self, item: T) -> None:
        """Append, and let the worker run."""
        self._items.append(item)
        self._filled.set()

    def put_back(self, items: Iterable[T]) -> None:
        """Items whose turn failed; the worker should pause before it takes again."""
        self._items[:0] = items
        if self._items:
            self._filled.set()

    async def take(self) -> list[T]:
        """Wait until something is there, then everything."""
        await self._filled.wait()
        self._filled.clear()
        taken, self._items = self._items, []
        return taken

    def __len__(self) -> int:
        return len(self._items)
