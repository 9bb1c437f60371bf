"""Reads what `rampmeter top` shows; what does not answer is named and the rest is read."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Self, TypeVar

import msgspec
from confluent_kafka import KafkaException

from autoscaler.backlog import Backlog, BacklogReader
from rampmeter.doctor.diagnosis import FORGOTTEN_S
from rampmeter.top import making
from rampmeter.top.feed import Feed
from rampmeter.top.snapshot import Snapshot, Unread
from rampmeter.top.tenants import Activity
from topics import codec
from topics.clock import Clock
from topics.errors import ConfigError, LagUnavailable
from topics.settings import Settings
from topics.telemetry import Telemetry

TIMEOUT_S = 5.0
"""Too small: a slow broker counts as away.  Too large: the screen shows so much later that it is."""
LOOK_BACK_S = 60.0
"""How old decisions are read at the start; telemetry as old as what is shown of one that fell silent."""
MAX_CONSUMERS = 10_000

_Read = TypeVar("_Read")


class Reader:
    """Makes snapshots; a context.  For one thread: remembers what rates follow from."""

    def __init__(self, settings: Settings, clock: Clock, tenants: int) -> None:
        """Show at most so many tenants by name."""
        self._settings, self._clock, self._tenants = settings, clock, tenants
        self._stack = ExitStack()
        self._backlogs = self._stack.enter_context(BacklogReader(settings, clock, TIMEOUT_S))
        self._telemetry, self._decisions = (self._feed(name) for name in ("telemetry", "decisions"))
        self._pace, self._activity = making.Pace(), Activity()
        self._reports: dict[str, Telemetry] = {}
        self._last_s: dict[str, float] = {}

    def read(self) -> Snapshot:
        """All as it is now; blocks for at most some timeouts while the broker is away."""
        unread: list[Unread] = []
        backlogs = {pool: self._try(f"lag of pool {pool}", self._lag(pool), unread) for pool in self._settings.pools}
        is_told = self._try("telemetry", self._follow_telemetry, unread)
        is_decided = self._try("decisions", self._follow_decisions, unread)
        self._pace.note([backlog for backlog in backlogs.values() if backlog is not None], self._clock.mono_s())
        now_s = self._clock.wall_s()
        consumers = making.consumers(self._reports.values(), now_s)
        self._reports = {one.consumer: self._reports[one.consumer] for one in consumers}
        seen = consumers if is_told else None
        return Snapshot(
            at_s=now_s,
            lanes=tuple(
                lane
                for pool, backlog in backlogs.items()
                for lane in making.lanes(pool, backlog, making.serves_units_per_s(pool, seen), self._pace)
            ),
            pools=tuple(making.pool(pool, backlog, seen, self._pace) for pool, backlog in backlogs.items()),
            tenants=self._activity.tenants(now_s, self._tenants) if is_decided else None,
            consumers=seen,
            unread=tuple(unread),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _feed(self, name: str) -> Feed:
        feed = Feed(self._settings, name, TIMEOUT_S)
        self._stack.callback(feed.close)
        return feed

    def _try(self, what: str, read: Callable[[], _Read], unread: list[Unread]) -> _Read | None:
        try:
            found = read()
        except KafkaException as error:
            why = error.args[0].str()
        except (LagUnavailable, ConfigError) as error:
            why = str(error)
        else:
            self._last_s[what] = self._clock.wall_s()
            return found
        unread.append(Unread(what, why.removeprefix(f"{what}: "), self._last_s.get(what)))
        return None

    def _lag(self, pool: str) -> Callable[[], Backlog]:
        return lambda: self._backlogs.read(pool)

    def _follow_telemetry(self) -> bool:
        now_s = self._clock.wall_s()
        for message in self._telemetry.since(now_s - FORGOTTEN_S):
            try:
                told = codec.decode_telemetry(message.value() or b"")
            except codec.UNREADABLE:
                continue  # another version's record; its consumer counts as silent
            if told.consumer in self._reports or len(self._reports) < MAX_CONSUMERS:
                # One whose clock is ahead must fall silent some day.
                self._reports[told.consumer] = msgspec.structs.replace(told, at_s=min(told.at_s, now_s))
        return True

    def _follow_decisions(self) -> bool:
        now_s = self._clock.wall_s()
        for message in self._decisions.since(now_s - LOOK_BACK_S):
            self._activity.take(message.value() or b"", now_s)
        return True
