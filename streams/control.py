"""Orders of operators and clients, followed from the control topic: cancel, pause, resume, change of limits."""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from msgspec import MsgspecError
from structlog import get_logger

from streams import metrics
from streams.policy import control
from streams.policy.control import Event, State
from streams.settings import Bucket, StreamsSettings
from topics import catalog, clients, codec, process
from topics.clock import Clock
from topics.errors import DependencyDown
from topics.records import Control, ControlAction, ControlKind, Decision, Priority

_log = get_logger()
_POLL_S = 0.2
_BATCH = 5000
_TIMEOUT_S = 10.0
_RETRY_S = 0.5
MAX_OPEN = 10_000
"""Orders that wait to be recorded as decisions; beyond it the oldest go unrecorded."""
MAX_TAKEN = 500

T = TypeVar("T")
OnLimit = Callable[[str, str, Bucket | None], None]
"""Takes level, name and the budget that holds from now on; None is that of the settings."""


class Controls:
    """Follows the control topic in a thread of its own, from its beginning; the event loop only reads.

    The thread replaces the whole state.  What was recorded in `decisions` is the committed offset of a group that
    nobody joins, so the next leader goes on where the last one stopped: each order is recorded at least once, again
    only when a leader ends between its record and that commit, and always under its own id.  Orders older than the
    decision log's retention are not recorded.
    """

    def __init__(
        self, settings: StreamsSettings, clock: Clock, by: str, is_leader: Callable[[], bool], on_limit: OnLimit
    ) -> None:
        """`is_leader` is asked in the event loop; `on_limit` is called in the thread and may only replace a value."""
        self._settings, self._clock, self._by = settings, clock, by
        self._is_leader, self._on_limit = is_leader, on_limit
        self._topic = settings.topic("control")
        self._hash = settings.short_hash()
        self._state = State()
        self._open: deque[Event] = deque(maxlen=MAX_OPEN)
        self._ready: deque[Event] = deque()
        self._cancel_keys: dict[str, float] = {}
        self._stale_keys: deque[bytes] = deque()
        self._leads = False
        self._offered: int | None = None
        self._taken: int | None = None
        self._recorded: int | None = None
        self._committed: int | None = None
        self._current, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        if not self._thread.is_alive():
            return
        self._stopped.set()
        self._thread.join(timeout=_TIMEOUT_S)

    def await_current(self, timeout_s: float = 30.0) -> None:
        """Return when all orders given before the start are known.  Blocking; raises DependencyDown."""
        if not self._current.wait(timeout_s):
            servers = self._settings.kafka.get("bootstrap.servers", "")
            fix = f"Look at the broker and at the topic {self._topic}."
            raise DependencyDown(f"the orders were not read within {timeout_s:g} s", servers, fix)

    def is_cancelled(self, request_id: str, tenant: str) -> bool:
        """Whether an order within the dedupe window cancels this request."""
        return self._state.is_cancelled(request_id, tenant, self._forget_before_s())

    def paused(self, tenant: str, pool: str, priority: Priority) -> bool:
        """Whether an order keeps this work waiting."""
        return self.paused_reason(tenant, pool, priority) is not None

    def paused_reason(self, tenant: str, pool: str, priority: Priority) -> str | None:
        """The same as a sentence."""
        return self._state.paused_reason(tenant, pool, priority)

    def take_decisions(self) -> list[Decision]:
        """The leader's entries for the decision log, in the order of the orders.

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
        return [self._decision(event.order) for event in taken if event.order is not None]

    def take_tombstones(self) -> list[bytes]:
        """Keys of cancellations that nobody needs any more: the leader gives each a null value, for compaction."""
        if not self._is_leader():
            return []
        return _taken(self._stale_keys)

    def note(self, events: Sequence[Event]) -> None:
        """Take in records that were read, in their order."""
        self._state, fates = control.fold(self._state, events, self._forget_before_s())
        for event, fate in fates:
            action = "forget" if event.order is None else event.order.action.value
            metrics.CONTROL_ORDERS.labels(action, fate).inc()
            self._cancel_keys.pop(event.key, None)
            if event.order is not None and event.order.action is ControlAction.CANCEL:
                self._cancel_keys[event.key] = event.at_s
            if fate == "applied":
                self._apply(event)
        while len(self._cancel_keys) > control.MAX_CANCELLED:  # the next start finds what is dropped here
            del self._cancel_keys[next(iter(self._cancel_keys))]
        for kind in (ControlKind.TENANT, ControlKind.POOL, ControlKind.CLASS):
            count = sum(1 for key in self._state.paused if key.startswith(control.pause_key(kind, "")))
            metrics.PAUSED.labels(kind.value).set(count)

    def _apply(self, event: Event) -> None:
        what, kind, *name = event.key.split(":", 2)
        if what == "limits":
            self._on_limit(kind, name[0], None if event.order is None else self._bucket(event.order))
        if event.order is not None and event.at_s >= self._clock.wall_s() - self._settings.topics.retention_s:
            self._open.append(event)

    def _bucket(self, order: Control) -> Bucket | None:
        """The budget of the settings with the order's figures in it."""
        given = {"refill_units_per_s": order.refill_units_per_s, "burst_s": order.burst_s}
        given = {name: value for name, value in given.items() if value is not None}
        return _configured(self._settings, order).model_copy(update=given) if given else None

    def _decision(self, order: Control) -> Decision:
        bucket = self._bucket(order) if order.action is ControlAction.LIMITS else None
        inputs = {
            "name": order.name,
            "tenant": order.tenant,
            "ordered_by": order.by,
            "ordered_at_s": order.at_s,
            "refill_units_per_s": None if bucket is None else bucket.refill_units_per_s,
            "burst_s": None if bucket is None else bucket.burst_s,
        }
        return Decision(
            id=order.id, stage="control", verdict=order.action.value, reason=order.kind.value,
            at_s=self._clock.wall_s(), by=self._by, inputs=inputs, settings_hash=self._hash,
        )  # fmt: skip

    def _forget_before_s(self) -> float:
        return self._clock.wall_s() - self._settings.dedupe_window_s

    def _run(self) -> None:
        """Without this thread the worker would run what was cancelled and admit what is paused: it ends with it."""
        try:
            self._follow()
        except Exception:  # noqa: BLE001 - the process ends with it
            _log.exception("control_failed")
            os._exit(process.EXIT_BUG)

    def _follow(self) -> None:
        group = catalog.group(self._settings, "control")
        with closing(
            clients.consumer(self._settings, group, enable_partition_eof=True, fetch_wait_max_ms=50)
        ) as reader:
            reader.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
            while not self._stopped.is_set():
                try:
                    self._step(reader)
                except KafkaException as error:
                    _log.warning("control_not_read", error=error.args[0].str(), doing="the last orders hold")
                    self._stopped.wait(_RETRY_S)

    def _step(self, reader: Consumer) -> None:
        first = reader.poll(_POLL_S)
        messages = [] if first is None else [first, *reader.consume(_BATCH, 0)]
        events = [event for message in messages if (event := self._read(message)) is not None]
        if events:
            self.note(events)
        if any(_is_end(message) for message in messages):
            self._current.set()
        self._record(reader)

    def _read(self, message: Message) -> Event | None:
        if message.error() is not None:
            return None
        offset = message.offset() or 0
        try:
            key = (message.key() or b"").decode()
            if not (value := message.value()):
                return Event(key, None, self._clock.wall_s(), offset)
            order = codec.decode_control(value)
        except (MsgspecError, UnicodeDecodeError):
            _ignore("undecodable", offset)
            return None
        if (fault := control.fault(order, key, self._settings.pools)) is not None:
            _ignore(fault, offset)
            return None
        # The sender's clock may be wrong: it counts only for what was not seen to arrive.
        now_s = self._clock.wall_s()
        return Event(key, order, now_s if self._current.is_set() else min(order.at_s, now_s), offset)

    def _record(self, reader: Consumer) -> None:
        """Offer the leader what is not yet in the decision log, and commit what is."""
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
        forget_before_s = self._forget_before_s()
        while self._cancel_keys:
            key, at_s = next(iter(self._cancel_keys.items()))
            if at_s >= forget_before_s:
                break
            del self._cancel_keys[key]
            self._stale_keys.append(key.encode())


def _taken(queue: deque[T]) -> list[T]:
    """At most MAX_TAKEN; the thread may empty the queue at any moment."""
    taken: list[T] = []
    with suppress(IndexError):
        while len(taken) < MAX_TAKEN:
            taken.append(queue.popleft())
    return taken


def _ignore(why: str, offset: int) -> None:
    metrics.CONTROL_ORDERS.labels("none", why).inc()
    _log.warning("control_ignored", why=why, offset=offset)


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - the library's public constant


def _configured(settings: StreamsSettings, order: Control) -> Bucket:
    section = settings.streams
    match order.kind:
        case ControlKind.TENANT:
            return section.tenant_budgets.get(order.name, section.tenant_budget)
        case ControlKind.POOL:
            return section.pool_budget
        case ControlKind.CLASS:
            return section.class_budgets[Priority(order.name)]
        case _:
            return section.global_budget
