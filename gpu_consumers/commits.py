"""Commits positions: now and then without waiting, and at once before partitions go.  Part of the poll thread."""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from gpu_consumers.assignment import Assignment
from gpu_consumers.metrics import Metrics
from gpu_consumers.offsets import Position
from topics.clock import Clock

log = structlog.get_logger()

_GIVE_UP_S = 60.0
"""A commit without an answer for this long is not waited for."""

Moved = tuple[Assignment, Position]


class Commits(Protocol):
    """How the poll thread commits: offsets alone, or in one transaction with the answers."""

    consumer: Consumer
    """Set once, before anything else: the client needs `on_commit` to be built."""
    idle_poll_s: float
    """Longest wait for records."""
    moved_s: float
    """When a commit last moved."""

    def commit_when_due(self, owned: Iterable[Assignment]) -> None:
        """Start a commit of what moved, at most one per interval."""

    def commit_now(self, going: Iterable[Assignment]) -> None:
        """Commit what moved and wait for it."""

    def drain(self, going: Collection[Assignment], owned: Callable[[], list[Assignment]], until_s: float) -> None:
        """Wait until nothing of `going` is in flight."""

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The client's callback for a commit without waiting."""


class Committer:
    """Touched only by the poll thread.

    Invariant: at most one commit is under way.  What failed has still moved, so the next one that is due tries again:
    a stale member epoch cures itself with the next poll.
    """

    consumer: Consumer
    idle_poll_s = 0.1

    def __init__(self, interval_s: float, clock: Clock, metrics: Metrics) -> None:
        self._interval_s, self._clock, self._metrics = interval_s, clock, metrics
        self._looked_s = self._sent_s = self.moved_s = clock.mono_s()
        self._underway: list[Moved] = []

    def commit_when_due(self, owned: Iterable[Assignment]) -> None:
        """Start a commit of what moved, at most one per interval and one at a time."""
        now_s = self._clock.mono_s()
        if now_s - self._looked_s < self._interval_s:
            return
        self._looked_s = now_s
        # While one is under way too: this is where a map is found to be crowded, and a broker may be silent for long.
        moved = _moved(owned)
        if not moved or (self._underway and now_s - self._sent_s < _GIVE_UP_S):
            return
        self._underway, self._sent_s = moved, now_s
        try:
            self.consumer.commit(offsets=[partition_at(*one) for one in moved], asynchronous=True)
        except KafkaException as error:
            self._underway = []
            self._failed(error.args[0], moved)

    def commit_now(self, going: Iterable[Assignment]) -> None:
        """Commit what moved and wait for it."""
        moved = _moved(going)
        if not moved:
            return
        try:
            answers = self.consumer.commit(offsets=[partition_at(*one) for one in moved], asynchronous=False)
        except KafkaException as error:
            self._failed(error.args[0], moved)
        else:
            self._note(moved, answers or [])

    def drain(self, going: Collection[Assignment], owned: Callable[[], list[Assignment]], until_s: float) -> None:  # noqa: ARG002
        """Wait until nothing of `going` is in flight."""
        for assignment in going:
            assignment.idle.wait(max(0.0, until_s - self._clock.mono_s()))

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The client's callback for a commit without waiting."""
        underway, self._underway = self._underway, []
        if error is not None:
            self._failed(error, underway)
        else:
            self._note(underway, partitions)

    def _note(self, moved: list[Moved], answers: list[TopicPartition]) -> None:
        """Note what the broker has; an answer to a commit that was given up is none to the one that followed it."""
        errors = [answer.error for answer in answers if answer.error is not None]
        taken = {(answer.topic, answer.partition, answer.offset) for answer in answers if answer.error is None}
        for assignment, position in moved:
            if (assignment.topic, assignment.partition, position.offset) in taken:
                assignment.tracker.committed(position)
        if errors:
            self._failed(errors[0], moved)
            return
        self.moved_s = self._clock.mono_s()
        self._metrics.commit(self._clock.wall_s())

    def _failed(self, error: KafkaError, moved: list[Moved]) -> None:
        self._metrics.commits.labels("failed").inc()
        log.warning("commit_failed", error=error.name())
        cut_maps(error, moved)


def cut_maps(error: KafkaError, moved: list[Moved]) -> None:
    """Have less listed where the broker found a map too long."""
    if error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE and moved:
        # The client says so of every partition of the commit; of the longest map it is surely true.
        assignment, position = max(moved, key=lambda one: len(one[1].metadata))
        assignment.tracker.refused(position)


def _moved(assignments: Iterable[Assignment]) -> list[Moved]:
    """Those with something to commit."""
    looked_at = ((assignment, assignment.tracker.position()) for assignment in assignments)
    return [(assignment, position) for assignment, position in looked_at if position is not None]


def partition_at(assignment: Assignment, position: Position) -> TopicPartition:
    """What the client commits."""
    return TopicPartition(assignment.topic, assignment.partition, position.offset, metadata=position.metadata)
