"""Kafka's part: lanes with partitions, each owned by one consumer, dealt out by range."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from gpu_consumers.policy.selection import Lane
from rampmeter.simulation.jobs import Job


class Owner(Protocol):
    """Who serves a partition."""

    def note_append(self, partition: "Partition", job: Job) -> None:
        """One of its partitions got a job."""

    def note_left(self, partition: "Partition", job: Job, *, is_gone: bool) -> None:
        """A job left one of its partitions; `is_gone`: not to begin with this owner."""


class Partition:
    """What waits in one, in order of appending.  Invariant: nothing in it has begun."""

    __slots__ = ("appended_records", "index", "lane", "last_units", "owner", "waiting")

    def __init__(self, lane: Lane, index: int) -> None:
        self.lane, self.index = lane, index
        self.waiting: deque[Job] = deque()
        self.owner: Owner | None = None
        """None while it moves from one consumer to another."""
        self.appended_records = 0
        self.last_units = 0.0
        """Cost of the last one appended."""

    def append(self, job: Job) -> None:
        """Put a job behind the others."""
        self.waiting.append(job)
        self.appended_records += 1
        self.last_units = job.ask.cost_units
        if self.owner is not None:
            self.owner.note_append(self, job)

    def take(self, *, is_gone: bool = False) -> Job:
        """Take the first out, for its owner to begin unless it `is_gone`."""
        job = self.waiting.popleft()
        if self.owner is not None:
            self.owner.note_left(self, job, is_gone=is_gone)
        return job

    def remove(self, job: Job) -> None:
        """Take a job out that began or ended elsewhere."""
        self.waiting.remove(job)
        if self.owner is not None:
            self.owner.note_left(self, job, is_gone=True)


def ranges(partitions: int, members: int) -> Sequence[range]:
    """The partitions of one topic that each member gets: contiguous, the first members one more."""
    each, more = divmod(partitions, members)
    starts = [number * each + min(number, more) for number in range(members + 1)]
    return [range(starts[number], starts[number + 1]) for number in range(members)]
