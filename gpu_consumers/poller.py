"""The thread that owns the consumer.  It polls whatever the engine does, so that long work never costs the membership.

Per turn: fetch, note what is finished, pause or resume, commit.  Nothing in it waits for inference, except a
revocation, which waits for running shorts up to one deadline.
"""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from gpu_consumers import positions
from gpu_consumers.assignment import Assignment, Done, Fetched, Release
from gpu_consumers.commits import Commits, Committer
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.metrics import Metrics
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy.selection import Lane
from gpu_consumers.settings import Gpu
from topics import clients, offset_map
from topics.clock import Clock

log = structlog.get_logger()

_PAUSED_POLL_S = 0.01
_RETRY_S = 1.0
HAND_OVER_S = 1.0
"""Longest wait for aborted work to be out of the engine and its claims to be given back."""
UNSUBSCRIBE_S = 2.0
"""Longest wait for the group to have taken everything back."""

Rebalance = Callable[[Consumer, list[TopicPartition]], None]


@dataclass(frozen=True, slots=True)
class Links:
    """What connects the thread with the rest of the process."""

    make_consumer: Callable[[Callable[..., None]], Consumer]
    """Builds the client, given its commit callback."""
    lanes: dict[str, Lane]
    """The pool's topics."""
    served: Collection[Lane]
    """The lanes to subscribe to at first."""
    inbox: "Mailbox[list[Fetched] | Release]"
    """Read by the loop."""
    commits: Commits | None = None
    """None: offsets are committed alone."""


class Poller:
    """Fetches and commits.  Its thread alone touches every field but `done` and `served`; others read."""

    def __init__(self, gpu: Gpu, links: Links, clock: Clock, metrics: Metrics) -> None:
        self._gpu, self._links, self._clock, self._metrics = gpu, links, clock, metrics
        self._hands_over = gpu.on_revoke == "abort"
        self.done: Mailbox[Done] = Mailbox(lambda: None)
        """Written by the loop; bounded by what is in flight."""
        self._commits = links.commits or Committer(gpu.commit_interval_s, clock, metrics)
        self._consumer = links.make_consumer(self._commits.on_commit)
        self._commits.consumer = self._consumer
        self._owned: dict[tuple[str, int], Assignment] = {}
        self.served = links.served
        """The lanes to be subscribed to from the next turn on; written by the loop.  None: the group is left."""
        self._subscribed: Collection[Lane] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
        self.turned_s = clock.mono_s()
        self.joined_s: float | None = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Join the group."""
        self._thread.start()

    def leave(self) -> None:
        """Have the thread commit, leave the group and end."""
        self._stopping.set()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def moved_s(self) -> float:
        """When a commit last moved."""
        return self._commits.moved_s

    def owned(self) -> list[Assignment]:
        """What is assigned now; from any thread."""
        return list(self._owned.values())

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._turn()
            self._end()
        except BaseException as error:
            self.failure = error
            log.exception("poller_died", error=type(error).__name__)

    def _guarded(self, callback: Rebalance) -> Rebalance:
        """The client loses what a callback raises; keep it for the end of the turn."""

        def call(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            try:
                callback(consumer, partitions)
            except BaseException as error:  # noqa: BLE001 - raised again in `_turn`
                self.failure = error

        return call

    def _subscribe(self) -> None:
        """Have the group know which lanes are served, if that has changed."""
        served = self.served
        if served == self._subscribed:
            return
        if served:
            self._consumer.subscribe(
                [topic for topic, lane in self._links.lanes.items() if lane in served],
                on_assign=self._guarded(self._on_assign),
                on_revoke=self._guarded(self._on_revoke),
                on_lost=self._guarded(self._on_lost),
            )
        else:
            self._consumer.unsubscribe()
        self._subscribed = served

    def _turn(self) -> None:
        self._subscribe()
        any_paused = any(assignment.paused for assignment in self._owned.values())
        first = self._consumer.poll(_PAUSED_POLL_S if any_paused else self._commits.idle_poll_s)
        if first is not None:
            more = self._gpu.poll_records - 1
            self._receive([first, *(self._consumer.consume(more, timeout=0) if more else ())])
        self._note_done()
        self._balance()
        self._commits.commit_when_due(self._owned.values())
        self.turned_s = self._clock.mono_s()
        if self.failure is not None:
            raise self.failure

    def _receive(self, messages: list[Message]) -> None:
        batch: list[Fetched] = []
        for message in messages:
            error = message.error()
            if error is not None and clients.is_fatal(error):
                raise KafkaException(error)
            if error is not None:
                log.warning("fetch_failed", topic=message.topic(), error=error.name())
                continue
            topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
            assignment = self._owned.get((topic, partition))
            if assignment is None:
                continue
            if assignment.tracker.goes_back(offset):
                assignment = self._begin_again(assignment, offset)
            if assignment.tracker.receive(offset):
                stamp_s = clients.written_s(message)
                batch.append(Fetched(assignment, offset, message.value(), message.key(), stamp_s))
                assignment.hand(batch[-1])
        if batch:
            self._links.inbox.put(batch)

    def _begin_again(self, old: Assignment, offset: int) -> Assignment:
        """The log was reset under us: what was noted about it concerns other records."""
        log.warning("log_reset", topic=old.topic, partition=old.partition, offset=offset)
        old.closed = True
        self._links.inbox.put(Release([old]))
        fresh = self._new_assignment(old.topic, old.partition, None, [])
        self._owned[old.topic, old.partition] = fresh
        return fresh

    def _new_assignment(self, topic: str, partition: int, offset: int | None, runs: offset_map.Runs) -> Assignment:
        bounds = {"window_records": self._gpu.window_records, "map_bytes": self._gpu.commit_map_bytes}
        tracker = OffsetTracker(offset, runs, **bounds)
        return Assignment(topic, partition, self._links.lanes[topic], tracker, hands_over=self._hands_over)

    def _note_done(self) -> None:
        for assignment, offset in self.done.take():
            if not assignment.closed:
                assignment.tracker.finish(offset)

    def _balance(self) -> None:
        """Pause partitions that have more than their share of full buffers, resume them under half of it."""
        bound_bytes = self._bound_bytes()
        for assignment in self._owned.values():
            filled = max(assignment.buffered / self._gpu.buffer_records, assignment.buffered_bytes / bound_bytes)
            must_wait = assignment.tracker.must_wait
            if not assignment.paused and (filled >= 1 or must_wait):
                self._consumer.pause([TopicPartition(assignment.topic, assignment.partition)])
                assignment.paused = True
                self._metrics.pauses.inc()
            elif assignment.paused and filled < 1 / 2 and not must_wait:
                self._consumer.resume([TopicPartition(assignment.topic, assignment.partition)])
                assignment.paused = False

    def _bound_bytes(self) -> float:
        """What each partition may buffer: an equal share of the memory, and what is spare."""
        all_bytes = self._gpu.buffer_mib << 20
        spare_bytes = all_bytes - sum(owned.buffered_bytes for owned in self._owned.values())
        return all_bytes / max(1, len(self._owned)) + max(0, spare_bytes)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        now_s = self._clock.mono_s()
        self.joined_s = self.joined_s or now_s
        self._metrics.rebalances.labels("assigned").inc()
        found = positions.read(consumer, partitions, self._is_ending, self._clock)
        if found is None:
            return
        for asked, partition in zip(partitions, found, strict=True):
            asked.offset = partition.offset
            offset = partition.offset if partition.offset >= 0 else None
            runs = self._read_map(partition) if offset is not None else []
            key = (partition.topic, partition.partition)
            self._owned[key] = self._new_assignment(*key, offset, runs)
        consumer.incremental_assign(partitions)
        # The client keeps a pause of an earlier stay of the partition, which the new assignment knows nothing of.
        consumer.resume(partitions)
        log.info("assigned", partitions=len(partitions), owned=len(self._owned))

    def _is_ending(self) -> bool:
        """Wait a moment for a broker, but not with the end; waiting so is a turn of the thread."""
        self.turned_s = self._clock.mono_s()
        return self._stopping.wait(_RETRY_S)

    def _read_map(self, partition: TopicPartition) -> offset_map.Runs:
        try:
            return offset_map.decode(partition.offset, partition.metadata)
        except offset_map.ForeignMetadata as error:
            log.warning("offset_map_ignored", topic=partition.topic, partition=partition.partition, problem=str(error))
            return []

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Stop dispatch, drain within the deadline, abort the rest if so set, commit, close the epoch, let go."""
        self._metrics.rebalances.labels("revoked").inc()
        going = self._assignments(partitions)
        self._links.inbox.put(Release(going))
        self._drain(going, self._gpu.drain_deadline_s)
        if self._hands_over and not all(assignment.idle.is_set() for assignment in going):
            self._links.inbox.put(Release(going, aborts=True))
            self._drain(going, HAND_OVER_S)
        self._note_done()
        self._commits.commit_now(going)
        self._close(going)
        consumer.incremental_unassign(partitions)
        log.info("revoked", partitions=len(partitions), owned=len(self._owned))

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The group has already given them away: commit nothing."""
        self._metrics.rebalances.labels("lost").inc()
        going = self._assignments(partitions)
        self._close(going)
        self._links.inbox.put(Release(going, aborts=self._hands_over))
        consumer.incremental_unassign(partitions)
        log.warning("lost", partitions=len(partitions), owned=len(self._owned))

    def _drain(self, going: list[Assignment], limit_s: float) -> None:
        self._commits.drain(going, self.owned, self._clock.mono_s() + limit_s)

    def _assignments(self, partitions: list[TopicPartition]) -> list[Assignment]:
        keys = [(partition.topic, partition.partition) for partition in partitions]
        return [self._owned[key] for key in keys if key in self._owned]

    def _close(self, going: list[Assignment]) -> None:
        for assignment in going:
            assignment.closed = True
            self._owned.pop((assignment.topic, assignment.partition), None)

    def _end(self) -> None:
        self._note_done()
        self._commits.commit_now(self.owned())
        self._close(self.owned())
        self._unsubscribe()
        self._consumer.close()

    def _unsubscribe(self) -> None:
        """Have nothing on its way to a client that closes.

        It answers an assignment then with a call that never returns and that holds the interpreter (librdkafka #4884).
        """
        self._consumer.unsubscribe()
        until_s = self._clock.mono_s() + UNSUBSCRIBE_S
        while True:
            self._consumer.poll(_PAUSED_POLL_S)
            if not self._consumer.assignment() or self._clock.mono_s() > until_s:
                return
