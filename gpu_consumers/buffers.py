"""What was fetched and not dispatched: queues by lane and group, oldest first.  Touched only by the loop."""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from itertools import count

from gpu_consumers.assignment import Assignment, Entry
from gpu_consumers.policy import expiry
from gpu_consumers.policy.batching import InFlight
from gpu_consumers.policy.expiry import StartLimits
from gpu_consumers.policy.selection import Lane
from topics.records import Length

_Heap = list[tuple[float, int, Entry]]


def one_group(_: str) -> str:
    """Models share their lanes' queues."""
    return ""


class Buffers:
    """Entries by lane.  The poll thread bounds them: a partition whose share is full is paused.

    `group_of` a model names the queue that its entries share, so that one group can be passed over.

    Entries that left through another door (expired, cancelled, released) stay in the heaps until they come up; each
    leaves once.
    """

    def __init__(self, group_of: Callable[[str], str] = one_group, limits: StartLimits = expiry.UNLIMITED) -> None:
        self._group_of, self._limits = group_of, limits
        self._lanes: dict[Lane, dict[str, _Heap]] = {}
        self._deadlines: _Heap = []
        self._cancelled: deque[Entry] = deque()
        self._suspects: dict[Entry, None] = {}
        self._sequence = count()
        self.units = 0.0
        """Cost of all that is buffered."""
        self.records = 0
        self.groups: Counter[str] = Counter()
        """Records by group, suspects apart."""
        self.lanes: Counter[Lane] = Counter()
        """Records by lane."""
        self.by_length = dict.fromkeys(Length, InFlight())
        """What those ask of the engine."""

    def add(self, entry: Entry) -> None:
        """Queue it by the time it was put on its lane; suspects wait apart, since their turn is another's to tell."""
        order = next(self._sequence)
        if entry.is_suspect:
            self._suspects[entry] = None
        else:
            self._queue(entry, order)
        last_start_s = expiry.last_start_s(entry.work, self._limits)
        if last_start_s is not None:
            heapq.heappush(self._deadlines, (last_start_s, order, entry))
        if entry.order is not None:
            self._cancelled.append(entry)
        self.units += entry.ask.cost_units
        self.records += 1
        self.lanes[entry.lane] += 1

    def _queue(self, entry: Entry, order: int) -> None:
        length, group = entry.lane.length, self.group(entry)
        heap = self._lanes.setdefault(entry.lane, {}).setdefault(group, [])
        heapq.heappush(heap, (entry.fetched.timestamp_s, order, entry))
        self.groups[group] += 1
        self.by_length[length] = self.by_length[length].entered(entry.ask)

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Take entries again that could not be dispatched after all; they keep their place in time."""
        for entry in entries:
            if not entry.assignment.released:
                entry.buffered = True
                entry.assignment.put_back(entry.fetched)
                self.add(entry)

    def group(self, entry: Entry) -> str:
        """The group that it queues in."""
        return self._group_of(entry.work.request.model)

    def waiting(self, passed: Collection[str] = ()) -> Collection[Lane]:
        """The lanes that hold something, groups that are passed over apart."""
        return [lane for lane in self._lanes if self.head(lane, passed) is not None]

    def head(self, lane: Lane, passed: Collection[str] = ()) -> Entry | None:
        """The lane's oldest entry, groups that are passed over apart."""
        heads = (self._first(heap) for group, heap in self._lanes.get(lane, {}).items() if group not in passed)
        first = min((item for item in heads if item is not None), default=None)
        return None if first is None else first[2]

    def heads(self, group: str) -> list[Entry]:
        """The oldest of each lane in one group."""
        firsts = [self._first(heaps[group]) for heaps in self._lanes.values() if group in heaps]
        return [first[2] for first in firsts if first is not None]

    def _first(self, heap: _Heap) -> tuple[float, int, Entry] | None:
        while heap and not self._is_queued(heap[0][2]):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _is_queued(self, entry: Entry) -> bool:
        """Whether it is there: one that left may have come back as a suspect."""
        return entry.buffered and entry not in self._suspects

    def suspects(self) -> list[Entry]:
        """Those who may be the cause of a failure, in the order in which they came."""
        return list(self._suspects)

    def take(self, entry: Entry) -> None:
        """Take it out; its heaps forget it when it comes up."""
        entry.buffered = False
        entry.assignment.take(entry.fetched)
        self.records -= 1
        self.lanes[entry.lane] -= 1
        self.units = self.units - entry.ask.cost_units if self.records else 0.0
        if entry in self._suspects:
            del self._suspects[entry]
        else:
            self._unqueue(entry)

    def _unqueue(self, entry: Entry) -> None:
        length, group = entry.lane.length, self.group(entry)
        self.by_length[length] = self.by_length[length].left(entry.ask, had_first_token=False)
        self.groups[group] -= 1
        if not self.groups[group]:  # a group for each model that ever came would stay for ever
            del self.groups[group]
            for heaps in self._lanes.values():
                heaps.pop(group, None)

    def has_expired(self, now_s: float) -> bool:
        """Whether it has become too late for any of what was buffered."""
        return bool(self._deadlines) and self._deadlines[0][0] <= now_s

    def take_expired(self, now_s: float, limit: int) -> list[Entry]:
        """Take out at most `limit` of those that it is too late for."""
        found: list[Entry] = []
        while self._deadlines and self._deadlines[0][0] <= now_s and len(found) < limit:
            entry = heapq.heappop(self._deadlines)[2]
            if entry.buffered:
                self.take(entry)
                found.append(entry)
        return found

    def cancel(self, is_cancelled: Callable[[Entry], bool]) -> None:
        """Have those that it says so of leave next."""
        self._cancelled += [entry for entry in self.all() if is_cancelled(entry)]

    def take_cancelled(self, limit: int) -> list[Entry]:
        """Take out at most `limit` of those."""
        found: list[Entry] = []
        while self._cancelled and len(found) < limit:
            entry = self._cancelled.popleft()
            if entry.buffered:
                self.take(entry)
                found.append(entry)
        return found

    def all(self) -> list[Entry]:
        """Everything, in no order."""
        queued = [entry for heap in self._heaps() for _, _, entry in heap if entry.buffered]
        return list(dict.fromkeys((*queued, *self._suspects)))  # one that was put back is in its heap twice

    def _heaps(self) -> list[_Heap]:
        return [heap for heaps in self._lanes.values() for heap in heaps.values()]

    def drop(self, assignments: Collection[Assignment]) -> None:
        """Forget all of these assignments; their next owner fetches it again."""
        gone = set(assignments)
        for entry in self.all():
            if entry.assignment in gone:
                self.take(entry)
        self._deadlines = [item for item in self._deadlines if item[2].buffered]
        heapq.heapify(self._deadlines)
        self._cancelled = deque(entry for entry in self._cancelled if entry.buffered)
