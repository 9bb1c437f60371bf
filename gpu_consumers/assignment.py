"""What the poll thread and the loop hand each other: assignments, fetched records, entries."""

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from opentelemetry.trace import SpanContext

from gpu_consumers.claims import Memory
from gpu_consumers.engine import Progress
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.selection import Lane
from topics.records import Control, Length, Reply, Work

_ENTRY_BYTES = 1536
"""Measured: 2.2 KB for a record of 0.5 KB.  Too small: the buffers outgrow their bound.  Too large: they hold less."""


@dataclass(slots=True, eq=False)
class Assignment:
    """One stay of a lane partition with this consumer; its identity is the epoch.

    Invariant: each field has one writer.  The poll thread writes `tracker`, `hands_over`, `handed`, `handed_bytes`,
    `paused` and `closed`; the loop writes `taken`, `taken_bytes`, `inflight`, `released` and `idle`.
    """

    topic: str
    partition: int
    lane: Lane
    tracker: OffsetTracker
    hands_over: bool = False
    """What still runs of it when its drain is over is aborted for its next owner."""
    handed: int = 0
    """Records given to the loop so far."""
    handed_bytes: int = 0
    paused: bool = False
    closed: bool = False
    """No commit may follow: the partition belongs to someone else, or to a later assignment."""
    taken: int = 0
    """Records that have left the loop's buffers so far."""
    taken_bytes: int = 0
    inflight: int = 0
    """Records that left the buffers and whose fate is not acknowledged."""
    released: bool = False
    """Nothing more of it is dispatched."""
    idle: threading.Event = field(default_factory=threading.Event)
    """Set when it is released and nothing of it is in flight that a rebalance waits for.

    Longs are waited for only where they would be aborted: hardly one ends within the deadline, for which its partition
    stands.  Otherwise they go on here, and the next owner of the record finds their claims held, then done.
    """

    @property
    def buffered(self) -> int:
        """Records between the fetch and the dispatch."""
        return self.handed - self.taken

    @property
    def buffered_bytes(self) -> int:
        """Memory that they take, about."""
        return self.handed_bytes - self.taken_bytes

    def hand(self, fetched: "Fetched") -> None:
        """One record more for the loop."""
        self.handed += 1
        self.handed_bytes += fetched.memory_bytes

    def take(self, fetched: "Fetched") -> None:
        """It has left the buffers."""
        self.taken += 1
        self.taken_bytes += fetched.memory_bytes

    def put_back(self, fetched: "Fetched") -> None:
        """It is in them again."""
        self.taken -= 1
        self.taken_bytes -= fetched.memory_bytes

    def finish_one(self) -> None:
        """One record less in flight."""
        self.inflight -= 1
        if self.released and self.inflight == 0:
            self.idle.set()

    def release(self) -> None:
        """Dispatch nothing more."""
        self.released = True
        if self.inflight == 0 or (self.lane.length is Length.LONG and not self.hands_over):
            self.idle.set()


class Fetched(NamedTuple):
    """A record as it came from the broker."""

    assignment: Assignment
    offset: int
    value: bytes | None
    key: bytes | None
    timestamp_s: float

    @property
    def memory_bytes(self) -> int:
        """What it takes while it is buffered, about: its bytes, what is read from them, and the objects around."""
        return _ENTRY_BYTES + 2 * len(self.value or b"")


class Release(NamedTuple):
    """Assignments that are going away: stop dispatching them and drop what is buffered."""

    assignments: list[Assignment]
    aborts: bool = False
    """End what runs of them too."""


class Done(NamedTuple):
    """An offset whose fate is acknowledged."""

    assignment: Assignment
    offset: int


class Recalled(NamedTuple):
    """What the log said of an id that Redis may have forgotten: its answer, if there was one."""

    memory: Memory | None
    answer: Reply | None


@dataclass(slots=True, eq=False)
class Entry:
    """A decoded record between fetch and acknowledgement; touched only by the loop."""

    fetched: Fetched
    work: Work
    ask: Ask
    here_s: float = 0.0
    """When it came here, by the monotonic clock."""
    buffered: bool = True
    since_s: float = 0.0
    """Since when it can have been answered, for the look-up of one that was taken over or forgotten."""
    takeovers: int = 0
    """Owners of its id that were lost, as of the last claim."""
    is_suspect: bool = False
    """It may be what ends its owners, or what those failed of that ran beside it."""
    refused_since_s: float | None = None
    """When the engine first did not take it, by the monotonic clock."""
    recalled: Recalled | None = None
    is_unclaimed: bool = False
    """It began while Redis was away."""
    order: Control | None = None
    """The cancel that applies to it."""
    gives_way: bool = False
    """Its attempt ends for the next owner of its partition."""
    started_s: float | None = None
    first_token_s: float | None = None
    progress: Progress = field(default_factory=Progress)
    """Of its attempt in the engine."""
    beside: Collection[Lane] = ()
    """Lanes that waited when it was chosen, its own among them."""
    has_seat: bool = False
    """Counted in what the engine holds."""
    chunks: int = 0
    """Chunks sent."""
    open_chunks: int = 0
    """Chunks sent whose fate is awaited: the answer of a transaction must lie behind them."""
    headers: list[tuple[str, str | bytes | None]] | None = None
    """Of its chunks, once made."""
    batch: SpanContext | None = None
    """With whom it was given to the engine, where OpenTelemetry is told."""

    def begin_anew(self) -> None:
        """Forget an attempt that did not count."""
        self.started_s = self.first_token_s = None
        self.progress = Progress()
        self.chunks = 0

    @property
    def id(self) -> str:
        """The request's id."""
        return self.work.request.id

    @property
    def assignment(self) -> Assignment:
        """Where it was fetched."""
        return self.fetched.assignment

    @property
    def lane(self) -> Lane:
        """Where it queued: its rank, whatever the labels inside say."""
        return self.fetched.assignment.lane
