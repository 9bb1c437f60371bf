"""What was fetched and not dispatched: one queue per lane, oldest first.  Touched only by the loop."""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count

from gpu_consumers.assignment import Assignment, Entry
from gpu_consumers.policy.selection import Lane


class Buffers:
    """Entries by lane.  The poll thread bounds them: a partition whose share is full is paused.

    Entries that left through another door (expired, cancelled, released) stay in the heaps until they come up; each
    leaves once.
    """

    def __init__(self) -> None:
        self._lanes: dict[Lane, list[tuple[float, int, Entry]]] = {}
        self._deadlines: list[tuple[float, int, Entry]] = []
        self._cancelled: deque[Entry] = deque()
        self._suspects: list[Entry] = []
        self._sequence = count()
        self.units = 0.0
        """Cost of all that is buffered."""
        self.records = 0

    def add(self, entry: Entry) -> None:
        """Queue it by the time it was put on its lane; suspects wait apart, since their turn is another's to tell."""
        order = next(self._sequence)
        if entry.is_suspect:
            self._suspects.append(entry)
        else:
            heapq.heappush(self._lanes.setdefault(entry.lane, []), (entry.fetched.timestamp_s, order, entry))
        deadline_s = entry.work.request.deadline_s
        if deadline_s is not None:
            heapq.heappush(self._deadlines, (deadline_s, order, entry))
        if entry.order is not None:
            self._cancelled.append(entry)
        self.units += entry.ask.cost_units
        self.records += 1

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Take entries again that could not be dispatched after all; they keep their place in time."""
        for entry in entries:
            if not entry.assignment.released:
                entry.buffered = True
                entry.assignment.taken -= 1
                self.add(entry)

    def waiting(self) -> Collection[Lane]:
        """The lanes that hold something."""
        return [lane for lane in self._lanes if self.head(lane) is not None]

    def head(self, lane: Lane) -> Entry | None:
        """The lane's oldest entry."""
        heap = self._lanes.get(lane)
        while heap:
            entry = heap[0][2]
            if entry.buffered:
                return entry
            heapq.heappop(heap)
        return None

    def suspects(self) -> list[Entry]:
        """Those who may be the cause of a failure, in the order in which they came."""
        self._suspects = [entry for entry in self._suspects if entry.buffered]
        return list(self._suspects)

    def take(self, entry: Entry) -> None:
        """Take it out; its heaps forget it when it comes up."""
        entry.buffered = False
        entry.assignment.taken += 1
        self.records -= 1
        self.units = self.units - entry.ask.cost_units if self.records else 0.0

    def has_expired(self, now_s: float) -> bool:
        """Whether the earliest deadline of what was buffered has come."""
        return bool(self._deadlines) and self._deadlines[0][0] <= now_s

    def take_expired(self, now_s: float, limit: int) -> list[Entry]:
        """Take out at most `limit` of those whose deadline has come."""
        found: list[Entry] = []
        while self._deadlines and self._deadlines[0][0] <= now_s and len(found) < limit:
            entry = heapq.heappop(self._deadlines)[2]
            if entry.buffered:
                self.take(entry)
                found.append(entry)
        return found

    def cancel(self, is_cancelled: Callable[[Entry], bool]) -> None:
        """Have those that it says so of leave next."""
        self._cancelled += [entry for entry in self._all() if entry.buffered and is_cancelled(entry)]

    def take_cancelled(self, limit: int) -> list[Entry]:
        """Take out at most `limit` of those."""
        found: list[Entry] = []
        while self._cancelled and len(found) < limit:
            entry = self._cancelled.popleft()
            if entry.buffered:
                self.take(entry)
                found.append(entry)
        return found

    def drop(self, assignments: Collection[Assignment]) -> None:
        """Forget all of these assignments; their next owner fetches it again."""
        gone = set(assignments)
        for entry in self._all():
            if entry.buffered and entry.assignment in gone:
                self.take(entry)
        self._deadlines = [item for item in self._deadlines if item[2].buffered]
        heapq.heapify(self._deadlines)
        self._cancelled = deque(entry for entry in self._cancelled if entry.buffered)

    def _all(self) -> Iterator[Entry]:
        """All that may be buffered, some of it twice."""
        for heap in self._lanes.values():
            for _, _, entry in heap:
                yield entry
        yield from self._suspects
