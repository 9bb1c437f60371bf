"""Hand-over between threads: many writers, one reader, one wake-up for as many items as have gathered."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """An ordered queue whose reader is woken once and then takes everything.

    Not bounded by itself: each writer's bound is named where it writes.  `wake` may be called from any thread and
    must not block.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._items: deque[T] = deque()
        self._wake = wake
        self._woken = False

    def put(self, item: T) -> None:
        """Append, and wake the reader unless it is woken already."""
        self._items.append(item)
        if not self._woken:
            self._woken = True
            self._wake()

    def take(self) -> list[T]:
        """Everything so far, oldest first.  Only the reader calls this."""
        self._woken = False  # before taking, so that whoever comes later wakes again
        items, taken = self._items, []
        while items:
            taken.append(items.popleft())
        return taken

    def __len__(self) -> int:
        return len(self._items)
