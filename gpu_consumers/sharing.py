"""The thread that owns a share consumer (KIP-932): a batch at a time, each acknowledged in full before the next.

Experimental.  The broker locks what it gave for a while and then gives it to others; there are no partitions to own, no
offsets to commit, and no lag.
"""

import threading
from collections.abc import Collection, Iterable

import structlog
from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer

from gpu_consumers.assignment import Assignment, Done, Fetched, Release
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy import roles
from gpu_consumers.policy.selection import Lane
from gpu_consumers.settings import Gpu
from topics import clients
from topics.clock import Clock

log = structlog.get_logger()

_POLL_S = 0.1
_PAUSE_S = 0.01
_LET_GO_RATIO = 0.8
"""Of the lock.  Too small: work is given to others while it runs.  Too large: a slow call and the lock has ended."""

_Place = tuple[str, int, int]


class SharePoller:
    """Fetches and acknowledges.  Its thread alone touches every field but `done` and `served`; others read.

    Invariant: nothing is fetched while a record of the last batch is neither finished nor let go.  What is let go
    while it runs goes on here: whoever is given its record finds the claim held, then done.
    """

    def __init__(
        self,
        gpu: Gpu,
        consumer: ShareConsumer,
        lanes: dict[str, Lane],
        inbox: "Mailbox[list[Fetched] | Release]",
        clock: Clock,
    ) -> None:
        self._gpu, self._consumer, self._lanes, self._inbox, self._clock = gpu, consumer, lanes, inbox, clock
        self.done: Mailbox[Done] = Mailbox(lambda: None)
        """Written by the loop; bounded by what is in flight."""
        self.served: Collection[Lane] = roles.serves(gpu.role, borrows=False)
        self._held: dict[_Place, Message] = {}
        self._batch: dict[tuple[str, int], Assignment] = {}
        self._let_go_s = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
        self.turned_s = self.moved_s = clock.mono_s()
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Join the group."""
        self._thread.start()

    def leave(self) -> None:
        """Have the thread let go what is not finished, leave the group and end."""
        self._stopping.set()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def owned(self) -> list[Assignment]:
        """The partitions that the last batch came from; others have them too."""
        return list(self._batch.values())

    def _run(self) -> None:
        try:
            self._consumer.subscribe([topic for topic, lane in self._lanes.items() if lane in self.served])
            while not self._stopping.is_set():
                self._turn()
            self._acknowledge()
            self._let_go()
            self._consumer.close()
        except BaseException as error:
            self.failure = error
            log.exception("poller_died", error=type(error).__name__)

    def _turn(self) -> None:
        self._acknowledge()
        if not self._held and self.served:
            self._fetch()
        elif self._held and self._clock.mono_s() >= self._let_go_s:
            self._let_go()
        else:
            self._stopping.wait(_PAUSE_S)
        self.turned_s = self._clock.mono_s()

    def _fetch(self) -> None:
        """Take the next batch; what was acknowledged goes out with the call."""
        asked_s = self._clock.mono_s()
        messages = [message for message in self._poll() if _is_record(message)]
        if not messages:
            return
        self._let_go_s = asked_s + self._gpu.share_lock_s * _LET_GO_RATIO
        self._batch = {}
        batch = []
        for message in messages:
            topic, partition, offset = _place(message)
            assignment = self._batch.get((topic, partition))
            if assignment is None:
                tracker = OffsetTracker(None, [], window_records=self._gpu.window_records)
                assignment = Assignment(topic, partition, self._lanes[topic], tracker)
                self._batch[topic, partition] = assignment
            self._held[topic, partition, offset] = message
            stamp_s = clients.written_s(message)
            batch.append(Fetched(assignment, offset, message.value(), message.key(), stamp_s))
            assignment.hand(batch[-1])
        self._inbox.put(batch)

    def _poll(self) -> Iterable[Message]:
        try:
            return self._consumer.poll(_POLL_S)
        except KafkaException as error:
            if clients.is_fatal(error.args[0]):
                raise
            log.warning("fetch_failed", error=error.args[0].name())
            self._stopping.wait(_POLL_S)
            return ()

    def _acknowledge(self) -> None:
        """Accept what is finished, and tell the broker at once: its lock may end before the batch does."""
        finished = [
            self._held.pop(place)
            for assignment, offset in self.done.take()
            if (place := (assignment.topic, assignment.partition, offset)) in self._held
        ]
        for message in finished:
            self._consumer.acknowledge(message)
        if finished:
            self._consumer.commit_async()
            self.moved_s = self._clock.mono_s()

    def _let_go(self) -> None:
        """Give back what is not finished: what only waits here goes to whoever has room, what runs goes on."""
        if self._held:
            log.info("let_go", records=len(self._held))
            for message in self._held.values():
                self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
            self._held.clear()
            self._consumer.commit_async()
            self._inbox.put(Release(self.owned()))


def _is_record(message: Message) -> bool:
    error = message.error()
    if error is None:
        return True
    if clients.is_fatal(error):
        raise KafkaException(error)
    log.warning("fetch_failed", topic=message.topic(), error=error.name())
    return False


def _place(message: Message) -> _Place:
    return message.topic() or "", message.partition() or 0, message.offset() or 0
