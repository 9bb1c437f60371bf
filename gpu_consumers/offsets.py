"""Which offsets of one assignment are finished, and what may be committed.  Pure; knows no client and no clock."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass

from topics import offset_map
from topics.offset_map import MAX_BYTES, Runs

_CROWDED_RATIO = 3 / 4
"""Of the map's limit, from where on nothing more is fetched: what is under way may still tear holes into it."""


@dataclass(frozen=True, slots=True)
class Position:
    """What to commit: everything below `offset` is finished, and so is what `metadata` lists above it."""

    offset: int
    metadata: str
    changes: int
    """Of the tracker, when this was its position."""


class OffsetTracker:
    """Offsets received in one assignment of one partition.  Touched only by the poll thread.

    Invariant: the position never passes an unfinished offset that was received.  Offsets may have gaps (transaction
    markers, compaction), so only received ones count; an offset that never comes cannot hold anything up.
    """

    def __init__(
        self, committed: int | None, finished: Runs, *, window_records: int, map_bytes: int = MAX_BYTES
    ) -> None:
        """`finished` are the runs of the committed metadata: they are skipped when they come again."""
        self._known = finished
        self._known_firsts = [first for first, _ in finished]
        self._window_records, self._map_bytes = window_records, map_bytes
        self._received: deque[int] = deque()
        self._finished: set[int] = set()
        self._next = committed
        self._changes = self._committed_changes = 0
        self._crowded = False

    def goes_back(self, offset: int) -> bool:
        """Tell whether this offset lies before what was expected: the log was reset, and a new tracker is due."""
        return self._next is not None and offset < self._next

    def receive(self, offset: int) -> bool:
        """Note a fetched record (never one that goes back); False when an earlier assignment finished it already."""
        self._next = offset + 1
        self._received.append(offset)
        if not self._is_known(offset):
            return True
        self._finished.add(offset)
        self._advance()
        return False

    def finish(self, offset: int) -> None:
        """Note that what came of a received record is acknowledged.  Repeated offsets change nothing."""
        if not self._received or offset < self._received[0] or offset in self._finished:
            return
        self._finished.add(offset)
        self._advance()

    def position(self) -> Position | None:
        """What to commit now, or None when nothing moved.  What does not fit into the map may run again."""
        if self._changes == self._committed_changes:
            return None
        end = self._next or 0
        offset = self._received[0] if self._received else end
        runs = _merge(_finished_runs(self._received, self._finished), self._known_from(end, beyond=offset))
        text = offset_map.encode(offset, runs)
        # While known runs lie ahead nothing that comes makes the map longer, and waiting would not make it shorter.
        self._crowded = len(text) > self._map_bytes * _CROWDED_RATIO and not self._is_known_from(end)
        if len(text) > self._map_bytes:
            text = offset_map.encode_most(offset, runs, self._map_bytes)
        return Position(offset, text, self._changes)

    def with_finished(self, offsets: Iterable[int]) -> "OffsetTracker":
        """A copy in which these are finished too: what may be committed together with what finishes them."""
        made = copy(self)
        made._received, made._finished = self._received.copy(), self._finished.copy()  # noqa: SLF001 - our own
        for offset in offsets:
            made.finish(offset)
        return made

    def committed(self, position: Position) -> None:
        """The broker has this position; nothing moves until another record is finished."""
        self._committed_changes = max(self._committed_changes, position.changes)

    def refused(self, position: Position) -> None:
        """The broker found the map of this position too long: it allows less than it does by default."""
        self._map_bytes = min(self._map_bytes, len(position.metadata) // 2)

    @property
    def unfinished(self) -> int:
        """Received records that hold the position back."""
        return len(self._received) - len(self._finished)

    @property
    def must_wait(self) -> bool:
        """True while no more should be fetched: the window or the metadata is nearly full."""
        return self._crowded or len(self._received) >= self._window_records

    def _advance(self) -> None:
        self._changes += 1
        received, finished = self._received, self._finished
        while received and received[0] in finished:
            finished.remove(received.popleft())

    def _is_known(self, offset: int) -> bool:
        at = bisect_right(self._known_firsts, offset) - 1
        return at >= 0 and offset <= self._known[at][1]

    def _is_known_from(self, end: int) -> bool:
        return bool(self._known) and self._known[-1][1] >= end

    def _known_from(self, end: int, *, beyond: int) -> Iterator[tuple[int, int]]:
        """Runs of the committed metadata that have not come again yet; the commit offset itself stays out."""
        start = max(end, beyond + 1)
        return ((max(first, start), last) for first, last in self._known if last >= start)


def _finished_runs(received: Iterable[int], finished: set[int]) -> Iterator[tuple[int, int]]:
    """Runs of finished records; a gap between two of them belongs to the run, since it can never come."""
    first = last = -1
    for offset in received if finished else ():
        if offset in finished:
            first, last = (offset if first < 0 else first), offset
        elif first >= 0:
            yield first, last
            first = -1
    if first >= 0:
        yield first, last


def _merge(runs: Iterable[tuple[int, int]], later: Iterable[tuple[int, int]]) -> Runs:
    merged = list(runs)
    for first, last in later:
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged
