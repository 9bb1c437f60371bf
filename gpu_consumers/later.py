"""Entries whose id another consumer runs: each is looked at again a little later.  Touched only by the loop."""

from collections import deque
from collections.abc import Callable, Collection, Iterator

from gpu_consumers.assignment import Assignment, Entry

_Queue = deque[tuple[float, Entry]]


class Later:
    """In the order in which they are due.

    Cancelled ones have a queue of their own, since they need no room in the engine, and so have suspects: only one of
    them may run, and the others must not hold up who comes after them.
    """

    def __init__(self) -> None:
        self._plain: _Queue = deque()
        self._suspects: _Queue = deque()
        self._cancelled: _Queue = deque()

    def __len__(self) -> int:
        return len(self._plain) + len(self._suspects) + len(self._cancelled)

    def __iter__(self) -> Iterator[Entry]:
        return (entry for queue in (self._plain, self._suspects, self._cancelled) for _, entry in queue)

    def add(self, entry: Entry, due_s: float) -> None:
        """Queue it; `due_s` never falls."""
        waiting = self._suspects if entry.is_suspect else self._plain
        (waiting if entry.order is None else self._cancelled).append((due_s, entry))

    def take_due(self, now_s: float, limit: int, seat: Callable[[Entry], bool]) -> list[Entry]:
        """Take out at most `limit` that are due, of those not cancelled only while `seat` finds room for them."""
        due: list[Entry] = []
        while self._cancelled and self._cancelled[0][0] <= now_s and len(due) < limit:
            due.append(self._cancelled.popleft()[1])
        for queue in (self._suspects, self._plain):
            while queue and queue[0][0] <= now_s and len(due) < limit and seat(queue[0][1]):
                due.append(queue.popleft()[1])
        return due

    def cancel(self, is_cancelled: Callable[[Entry], bool], now_s: float) -> None:
        """Make those that it says so of due at once."""
        for queue in (self._suspects, self._plain):
            items = list(queue)
            queue.clear()
            for due_s, entry in items:
                if is_cancelled(entry):
                    self._cancelled.appendleft((now_s, entry))
                else:
                    queue.append((due_s, entry))

    def drop(self, assignments: Collection[Assignment] | None = None) -> None:
        """Forget those of these assignments, or all: the next owner fetches them again."""
        self._plain, self._suspects, self._cancelled = (
            _without(queue, assignments) for queue in (self._plain, self._suspects, self._cancelled)
        )


def _without(queue: _Queue, assignments: Collection[Assignment] | None) -> _Queue:
    kept: _Queue = deque()
    for due_s, entry in queue:
        if assignments is None or entry.assignment in assignments:
            entry.assignment.finish_one()
        else:
            kept.append((due_s, entry))
    return kept
