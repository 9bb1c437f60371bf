"""Orders of operators and clients, followed from the control topic: cancel, pause, resume, change of limits."""

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition
from structlog import get_logger

from streams import following, limits, metrics
from streams.order_log import OrderLog
from streams.policy import control
from streams.policy.control import Event, State
from streams.settings import Bucket, StreamsSettings
from topics import catalog, clients, codec, orders, tail
from topics.clock import Clock
from topics.errors import DependencyDown
from topics.records import ControlKind, Priority

_log = get_logger()
_POLL_S = 0.2
_BATCH = 5000
_STOP_S = 10.0
_RETRY_S = 0.5
_ENDS_S = 5.0

OnLimit = Callable[[str, str, Bucket | None], None]
"""Takes level, name and the budget that holds from now on; None is that of the settings."""


class Controls:
    """Follows the control topic in a thread of its own, from its beginning; the event loop only reads.

    The thread replaces the whole state.
    """

    def __init__(self, settings: StreamsSettings, clock: Clock, order_log: OrderLog, on_limit: OnLimit) -> None:
        """`order_log` is told of each order; `on_limit` is called in the thread and may only replace a value."""
        self._settings, self._clock = settings, clock
        self._order_log, self._on_limit = order_log, on_limit
        self._topic = settings.topic("control")
        self._state = State()
        self._current, self._stopped = threading.Event(), threading.Event()
        self._thread = following.thread("control", self._follow)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        if not self._thread.is_alive():
            return
        self._stopped.set()
        self._thread.join(timeout=_STOP_S)

    def await_current(self, timeout_s: float = 30.0) -> None:
        """Return when all orders given before the start are known.  Blocking; raises DependencyDown."""
        if not self._current.wait(timeout_s):
            servers = self._settings.kafka.get("bootstrap.servers", "")
            fix = f"Look at the broker and at the topic {self._topic}."
            raise DependencyDown(f"the orders were not read within {timeout_s:g} s", servers, fix)

    @property
    def cancel_orders(self) -> Collection[tuple[str, str | None]]:
        """Ids under a cancel order, with the tenant that it names; the same object as long as nothing is new."""
        return self._state.cancelled

    def is_cancelled(self, request_id: str, tenant: str) -> bool:
        """Whether an order within the dedupe window cancels this request."""
        return self._state.is_cancelled(request_id, tenant, self._forget_before_s())

    def paused_reason(self, tenant: str, pool: str, priority: Priority) -> str | None:
        """What keeps this work waiting, as a sentence; None when no order does."""
        return self._state.paused_reason(tenant, pool, priority)

    def note(self, events: Sequence[Event]) -> None:
        """Take in records that were read, in their order."""
        self._state, fates = control.fold(self._state, events, self._forget_before_s())
        for event, fate in fates:
            action = "forget" if event.order is None else event.order.action.value
            metrics.CONTROL_ORDERS.labels(action, fate).inc()
            self._order_log.note(event, fate)
            if fate == "applied":
                self._apply(event)
        for kind in (ControlKind.TENANT, ControlKind.POOL, ControlKind.CLASS):
            count = sum(1 for key in self._state.paused if key.startswith(orders.pause_key(kind, "")))
            metrics.PAUSED.labels(kind.value).set(count)

    def _apply(self, event: Event) -> None:
        what, kind, *name = event.key.split(":", 2)
        if what == "limits":
            order = event.order
            self._on_limit(kind, name[0], None if order is None else limits.ordered(self._settings.streams, order))

    def _forget_before_s(self) -> float:
        return self._clock.wall_s() - self._settings.dedupe_window_s

    def _follow(self) -> None:
        group = catalog.group(self._settings, "control")
        with closing(
            clients.consumer(self._settings, group, enable_partition_eof=True, fetch_wait_max_ms=50)
        ) as reader:
            place, ends = TopicPartition(self._topic, 0, OFFSET_BEGINNING), None
            reader.assign([place])
            while not self._stopped.is_set():
                try:
                    ends = ends or tail.Ends(reader, [place], _ENDS_S)
                    self._step(reader, ends)
                except KafkaException as error:
                    _log.warning("control_not_read", error=error.args[0].str(), doing="the last orders hold")
                    self._stopped.wait(_RETRY_S)

    def _step(self, reader: Consumer, ends: tail.Ends) -> None:
        first = reader.poll(_POLL_S)
        messages = [] if first is None else [first, *reader.consume(_BATCH, 0)]
        events = [event for message in messages if (event := self._read(message)) is not None]
        if events:
            self.note(events)
        for message in messages:
            ends.note(message)
        if ends.are_reached:
            self._current.set()
        self._order_log.step(reader)

    def _read(self, message: Message) -> Event | None:
        if message.error() is not None:
            return None
        offset = message.offset() or 0
        try:
            key = (message.key() or b"").decode()
            if not (value := message.value()):
                return Event(key, None, self._clock.wall_s(), offset)
            order = codec.decode_control(value)
        except codec.UNREADABLE:
            _ignore("undecodable", offset)
            return None
        if (fault := orders.fault(order, key, self._settings.pools)) is not None:
            _ignore(fault, offset)
            return None
        # Never by the sender's clock, which may be wrong; by the broker's for what was not seen to arrive.
        now_s = self._clock.wall_s()
        return Event(key, order, now_s if self._current.is_set() else min(clients.written_s(message), now_s), offset)


def _ignore(why: str, offset: int) -> None:
    metrics.CONTROL_ORDERS.labels("none", why).inc()
    _log.warning("control_ignored", why=why, offset=offset)
