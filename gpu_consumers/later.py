"""Entries whose id another consumer runs: each is looked at again a little later.  Touched only by the loop."""

from collections import deque
from collections.abc import Callable, Collection

from gpu_consumers.assignment import Assignment, Entry

_Queue = deque[tuple[float, Entry]]


class Later:
    """In the order in which they are due.

    Cancelled ones have a queue of their own, since they need no room in the engine.
    """

    def __init__(self) -> None:
        self._plain: _Queue = deque()
        self._cancelled: _Queue = deque()

    def __len__(self) -> int:
        return len(self._plain) + len(self._cancelled)

    def add(self, entry: Entry, due_s: float) -> None:
        """Queue it; `due_s` never falls."""
        queue = self._plain if entry.order is None else self._cancelled
        queue.append((due_s, entry))

    def take_due(self, now_s: float, limit: int, seat: Callable[[Entry], bool]) -> list[Entry]:
        """Take out at most `limit` that are due, of those not cancelled only while `seat` finds room for them."""
        due: list[Entry] = []
        while self._cancelled and self._cancelled[0][0] <= now_s and len(due) < limit:
            due.append(self._cancelled.popleft()[1])
        while self._plain and self._plain[0][0] <= now_s and len(due) < limit and seat(self._plain[0][1]):
            due.append(self._plain.popleft()[1])
        return due

    def cancel(self, is_cancelled: Callable[[Entry], bool], now_s: float) -> None:
        """Make those that it says so of due at once."""
        kept: _Queue = deque()
        for due_s, entry in self._plain:
            if is_cancelled(entry):
                self._cancelled.appendleft((now_s, entry))
            else:
                kept.append((due_s, entry))
        self._plain = kept

    def drop(self, assignments: Collection[Assignment] | None = None) -> None:
        """Forget those of these assignments, or all: the next owner fetches them again."""
        self._plain, self._cancelled = _without(self._plain, assignments), _without(self._cancelled, assignments)


def _without(queue: _Queue, assignments: Collection[Assignment] | None) -> _Queue:
    kept: _Queue = deque()
    for due_s, entry in queue:
        if assignments is None or entry.assignment in assignments:
            entry.assignment.finish_one()
        else:
            kept.append((due_s, entry))
    return kept
