"""What the leader of all workers does about orders: records them as decisions, has old cancellations forgotten."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from confluent_kafka import Consumer, TopicPartition

from streams.policy import control
from streams.policy.control import Event
from streams.settings import StreamsSettings
from topics.clock import Clock
from topics.orders import PASSING
from topics.records import Control

_TIMEOUT_S = 10.0
MAX_OPEN = 10_000
"""Orders that wait to be recorded as decisions; beyond it the oldest go unrecorded."""
MAX_TAKEN = 500

T = TypeVar("T")


class OrderLog:
    """Which orders are in the decision log.  The thread of `Controls` notes and offers them, the event loop takes.

    What was recorded is the committed offset of a group that nobody joins, so the next leader goes on where the last
    one stopped: each order is recorded at least once, again only when a leader ends between its record and that commit,
    and always under its own id.  Orders older than the decision log's retention are not recorded.
    """

    def __init__(self, settings: StreamsSettings, clock: Clock, is_leader: Callable[[], bool]) -> None:
        """`is_leader` is asked in the event loop."""
        self._clock, self._is_leader = clock, is_leader
        self._retention_s, self._dedupe_window_s = settings.topics.retention_s, settings.dedupe_window_s
        self._topic = settings.topic("control")
        self._leads = False
        self._open: deque[Event] = deque(maxlen=MAX_OPEN)
        """In force and not known to be recorded, whoever leads."""
        self._ready: deque[Event] = deque()
        """Of these, what the event loop may take."""
        self._cancelled_s: dict[str, float] = {}
        """By key: when a cancellation was ordered, the oldest first."""
        self._stale_keys: deque[bytes] = deque()
        self._offered: int | None = None
        """Offsets, each that behind the last order that got so far: offered, taken, with the broker, committed."""
        self._taken: int | None = None
        self._recorded: int | None = None
        self._committed: int | None = None

    def take_orders(self) -> list[Control]:
        """The leader's orders for the decision log, as they were given.

        Each call says that the broker has what the call before returned.
        """
        if self._taken is not None:
            self._recorded, self._taken = self._taken, None
        self._leads = self._is_leader()
        if not self._leads:
            return []
        taken = _taken(self._ready)
        if taken:
            self._taken = taken[-1].offset + 1
        return [event.order for event in taken if event.order is not None]

    def take_tombstones(self) -> list[bytes]:
        """Keys of cancellations that nobody needs any more: the leader gives each a null value, for compaction."""
        if not self._is_leader():
            return []
        return _taken(self._stale_keys)

    def note(self, event: Event, fate: control.Fate) -> None:
        """Take in what a record of the control topic did."""
        order = event.order
        self._cancelled_s.pop(event.key, None)
        if order is not None and order.action in PASSING:
            self._cancelled_s[event.key] = event.at_s
            while len(self._cancelled_s) > control.MAX_CANCELLED:  # the next start finds what is dropped here
                del self._cancelled_s[next(iter(self._cancelled_s))]
        if fate == "applied" and order is not None and event.at_s >= self._clock.wall_s() - self._retention_s:
            self._open.append(event)

    def step(self, reader: Consumer) -> None:
        """Offer what is not yet in the decision log, and commit what is.  Raises KafkaException."""
        if not self._leads:
            self._offered = None
            self._ready.clear()
            return
        if self._offered is None:
            place = reader.committed([TopicPartition(self._topic, 0)], timeout=_TIMEOUT_S)[0]
            self._committed, self._offered = self._recorded, max(0, place.offset)
            self._drop_before(self._offered)
        recorded = self._recorded
        if recorded is not None and recorded != self._committed:
            reader.commit(offsets=[TopicPartition(self._topic, 0, recorded)], asynchronous=False)
            self._committed = recorded
            self._drop_before(recorded)
        for event in self._open:
            if event.offset >= self._offered:
                self._ready.append(event)
                self._offered = event.offset + 1
        self._find_stale()

    def _drop_before(self, offset: int) -> None:
        while self._open and self._open[0].offset < offset:
            self._open.popleft()

    def _find_stale(self) -> None:
        forget_before_s = self._clock.wall_s() - self._dedupe_window_s
        while self._cancelled_s:
            key, at_s = next(iter(self._cancelled_s.items()))
            if at_s >= forget_before_s:
                break
            del self._cancelled_s[key]
            self._stale_keys.append(key.encode())


def _taken(queue: deque[T]) -> list[T]:
    """At most MAX_TAKEN; the thread may empty the queue at any moment."""
    taken: list[T] = []
    with suppress(IndexError):
        while len(taken) < MAX_TAKEN:
            taken.append(queue.popleft())
    return taken
