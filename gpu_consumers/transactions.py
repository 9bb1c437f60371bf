"""Answers and the offsets of what they answer in one Kafka transaction.  Part of the poll thread.

While one is committed the next gathers.  None is open over inference: it begins when its answers are there.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from gpu_consumers import outbox
from gpu_consumers.assignment import Assignment
from gpu_consumers.commits import Moved, cut_maps, partition_at
from gpu_consumers.metrics import Metrics
from gpu_consumers.offsets import Position
from gpu_consumers.outbox import Ack
from gpu_consumers.parcels import Parcel, Returned, Together
from topics.clock import Clock

log = structlog.get_logger()

_CALL_S = 1.0
"""Longest wait for the coordinator in one turn.  Too small: calls go on in many turns.  Too large: polls wait."""
_AGAIN_S = 0.2
_END_S = 5.0
"""Longest wait for a transaction before partitions go."""
_PAUSE_S = 0.01
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001 - public constants


class Stage(StrEnum):
    """What an open transaction waits for."""

    OFFSETS = "offsets"
    COMMIT = "commit"
    ABORT = "abort"


@dataclass(slots=True)
class Transaction:
    """Parcels under way, and the positions that hold once they are sent."""

    parcels: list[Parcel]
    moved: list[Moved]
    stage: Stage = Stage.OFFSETS


class TransactionalCommitter:
    """Touched only by the poll thread.

    Invariant: at most one transaction is open.  An offset counts as finished here only in a committed one; without
    offsets go answers whose partition has left, which their claims alone protect.
    """

    consumer: Consumer
    idle_poll_s = _PAUSE_S

    def __init__(
        self, producer: Producer, parcels: Together, interval_s: float, clock: Clock, metrics: Metrics
    ) -> None:
        self._producer, self._parcels, self._interval_s = producer, parcels, interval_s
        self._clock, self._metrics = clock, metrics
        self._waiting: list[Parcel] = []
        self._open: Transaction | None = None
        self._is_ready = False
        self._not_before_s = self._last_s = self.moved_s = clock.mono_s()

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Never called: nothing is committed outside of transactions."""

    def commit_when_due(self, owned: Iterable[Assignment]) -> None:
        """Go on with the open transaction, or begin one if there is something for it."""
        self._waiting += self._parcels.outgoing.take()
        if self._open is not None:
            self._advance()
        elif self._prepared() and self._clock.mono_s() >= self._not_before_s:
            self._begin(owned)
            self._advance()

    def commit_now(self, going: Iterable[Assignment]) -> None:
        """End the open transaction, then commit what moved and what is ready; bounded."""
        going, until_s = list(going), self._clock.mono_s() + _END_S
        self._conclude(until_s)
        self._waiting += self._parcels.outgoing.take()
        if self._open is None and self._clock.mono_s() < until_s and self._prepared():
            self._last_s = float("-inf")
            self._begin(going)
            self._conclude(until_s)

    def drain(self, going: Collection[Assignment], owned: Callable[[], list[Assignment]], until_s: float) -> None:
        """Wait until nothing of `going` is in flight; what ends meanwhile is sent."""
        for assignment in going:
            while not assignment.idle.wait(_PAUSE_S) and self._clock.mono_s() < until_s:
                self.commit_when_due(owned())

    def _prepared(self) -> bool:
        """Whether the broker knows this producer; what an earlier life of it left open is aborted then."""
        if not self._is_ready:
            self._is_ready = self._tried(lambda: self._producer.init_transactions(_CALL_S)) is None
        return self._is_ready

    def _begin(self, owned: Iterable[Assignment]) -> None:
        parcels, now_s = self._chosen(), self._clock.mono_s()
        is_due = now_s - self._last_s >= self._interval_s
        moved = _moved(owned, parcels, all_of_them=is_due)
        if is_due:
            self._last_s = now_s
        if parcels or moved:
            self._producer.begin_transaction()
            self._open = Transaction(parcels, moved)
            if not all(self._produce(parcel) for parcel in parcels):
                self._open.stage = Stage.ABORT

    def _chosen(self) -> list[Parcel]:
        """Take out what may go: all that can go together, or one that must not.  What is not sure goes back."""
        waiting, ready = [], []
        for parcel in self._waiting:
            if not self._parcels.is_sure(parcel):
                self._parcels.returned.put(Returned(parcel, is_sent=False))
            elif parcel.has_its_chunks:
                ready.append(parcel)
            else:
                waiting.append(parcel)
        chosen = [parcel for parcel in ready if not parcel.is_alone] or ready[:1]
        taken = set(map(id, chosen))
        self._waiting = [*waiting, *(parcel for parcel in ready if id(parcel) not in taken)]
        return chosen

    def _produce(self, parcel: Parcel) -> bool:
        """Hand its letters to the client; False when one is refused at once."""
        parcel.acks.clear()
        for item in parcel.items:
            try:
                outbox.produce(self._producer, item.letter, partial(parcel.acks.__setitem__, item))
            except (BufferError, KafkaException) as error:
                code = error.args[0].code() if isinstance(error, KafkaException) else KafkaError._QUEUE_FULL  # noqa: SLF001
                parcel.acks[item] = Ack(code, item.letter.topic)
                return False
        return True

    def _advance(self) -> None:
        """Take the open transaction one step on, as far as the coordinator answers within a moment."""
        transaction = self._open
        while transaction is not None and self._open is transaction:
            if transaction.stage is Stage.OFFSETS and any(assignment.closed for assignment, _ in transaction.moved):
                transaction.stage = Stage.ABORT
            error = self._tried(lambda: self._call(transaction))
            if error is None:
                self._go_on(transaction)
            elif error.txn_requires_abort():
                log.warning("transaction_aborted", error=error.name(), answers=len(transaction.parcels))
                cut_maps(error, transaction.moved)
                transaction.stage = Stage.ABORT
            else:
                return

    def _call(self, transaction: Transaction) -> None:
        match transaction.stage:
            case Stage.OFFSETS:
                offsets = [partition_at(*one) for one in transaction.moved]
                if offsets:
                    # Asked for anew each time: the member's epoch may change without a callback.
                    group = self.consumer.consumer_group_metadata()
                    self._producer.send_offsets_to_transaction(offsets, group, _CALL_S)
            case Stage.COMMIT:
                self._producer.commit_transaction(_CALL_S)
            case Stage.ABORT:
                self._producer.abort_transaction(_CALL_S)

    def _go_on(self, transaction: Transaction) -> None:
        match transaction.stage:
            case Stage.OFFSETS:
                transaction.stage = Stage.COMMIT
            case Stage.COMMIT:
                self._open = None
                self._committed(transaction)
            case Stage.ABORT:
                self._open = None
                self._aborted(transaction)

    def _committed(self, transaction: Transaction) -> None:
        positions = dict(transaction.moved)
        for parcel in transaction.parcels:
            if parcel.entry.assignment in positions:
                parcel.entry.assignment.tracker.finish(parcel.entry.fetched.offset)
            self._parcels.returned.put(Returned(parcel, is_sent=True))
        for assignment, position in transaction.moved:
            assignment.tracker.position()  # it looks then whether the map grows too large
            assignment.tracker.committed(position)
        self.moved_s = self._clock.mono_s()
        self._metrics.commit(self._clock.wall_s())

    def _aborted(self, transaction: Transaction) -> None:
        self._metrics.commits.labels("failed").inc()
        self._not_before_s = self._clock.mono_s() + _AGAIN_S
        for parcel in transaction.parcels:
            parcel.goes_alone = parcel.goes_alone or any(
                ack.error is not None and ack.error not in _PURGED for ack in parcel.acks.values()
            )
            self._parcels.returned.put(Returned(parcel, is_sent=False))

    def _conclude(self, until_s: float) -> None:
        """Bring the open transaction to its end; what has not sent its offsets in time is aborted."""
        while self._open is not None and self._clock.mono_s() < until_s:
            self._advance()
        if self._open is not None and self._open.stage is Stage.OFFSETS:
            self._open.stage = Stage.ABORT
            self._advance()

    def _tried(self, call: Callable[[], None]) -> KafkaError | None:
        """None when it succeeded, else why it did not yet; raises what no retry and no abort cures.

        A producer that was fenced is one of those: another process with this id took its place.
        """
        try:
            call()
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if error.fatal() or not (error.retriable() or error.txn_requires_abort()):
                raise
            return error
        return None


def _moved(owned: Iterable[Assignment], parcels: list[Parcel], *, all_of_them: bool) -> list[Moved]:
    """Positions once the parcels are sent: of their assignments, or of all that moved."""
    ended: dict[Assignment, list[int]] = {}
    for parcel in parcels:
        ended.setdefault(parcel.entry.assignment, []).append(parcel.entry.fetched.offset)
    looked_at = [assignment for assignment in owned if all_of_them or assignment in ended]
    found: list[tuple[Assignment, Position | None]] = [
        (assignment, assignment.tracker.with_finished(ended.get(assignment, ())).position())
        for assignment in looked_at
        if not assignment.closed
    ]
    return [(assignment, position) for assignment, position in found if position is not None]
