"""The one windowed table: what was spent by tenant, model and class, and what each kind of request needed.

Written only by the settle agent, from `usage`.  One table for both, since Faust's recovery of several can hang.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import faust
from faust.types import EventT

from streams import metrics
from streams.batches import make_current
from streams.policy import history
from streams.policy.history import Kind, Sample
from streams.settings import Streams
from topics.clock import Clock
from topics.records import Usage

Window = tuple[float, float]
"""Start and end."""
Key = tuple[str, Window]
"""`<prefix>|<what it is about>`, and the window."""
Row = dict[str, Any]

_SPEND, _KIND = "spend|", "kind|"


@dataclass(slots=True)
class Spend:
    """Sums of one key in one batch."""

    requests: int = 0
    units: float = 0.0
    output_tokens: int = 0

    def add(self, usage: Usage, units: float) -> None:
        """Count one usage record."""
        self.requests += 1
        self.units += units
        self.output_tokens += usage.tokens.output

    def onto(self, row: Row) -> Row:
        """The row with these sums added."""
        return {
            "requests": row.get("requests", 0) + self.requests,
            "units": row.get("units", 0.0) + self.units,
            "output_tokens": row.get("output_tokens", 0) + self.output_tokens,
        }


def spend_key(usage: Usage) -> str:
    """What a row of spending is about: tenant, model and class."""
    return f"{usage.tenant}|{usage.model}|{usage.priority}|{usage.length}"


class Rows:
    """The rows of the table.  Written only by the settle agent, each in the partition of the event that it came from.

    Invariant: beyond `history.max_kinds` kinds the one of the event's partition that was not seen longest is forgotten.
    """

    def __init__(self, table: MutableMapping[Key, Row], settings: Streams, clock: Clock) -> None:
        """Nothing is read before it is asked for."""
        self._table, self._settings, self._clock = table, settings, clock
        self._kinds: OrderedDict[str, int] = OrderedDict()

    def at_s(self, event: EventT) -> float:
        """Time of an event; one from the future, by its sender's clock, happened now."""
        return min(event.message.timestamp, self._clock.wall_s())

    def spend_window(self, event: EventT) -> Window:
        """The window of spending that an event belongs to."""
        return _window(self.at_s(event), self._settings.spend_window_s)

    def history_window(self, event: EventT) -> Window:
        """The same for what its kind needed."""
        return _window(self.at_s(event), self._settings.history.window_s)

    def spend(self, event: EventT, key: str, spent: Spend) -> None:
        """Add what was spent to the window of the event."""
        place = (_SPEND + key, self.spend_window(event))
        make_current(event)
        self._table[place] = spent.onto(self._table.get(place) or {})

    def learn(self, event: EventT, kind: Kind, samples: Iterable[Sample]) -> None:
        """Count what requests of a kind needed in the window of the event."""
        place = (_KIND + kind.key, self.history_window(event))
        make_current(event)
        self._table[place] = history.add(self._table.get(place) or {}, samples)
        self._seen(kind.key, event.message.partition)
        self._forget_one(kind.key)

    def of_kind(self, kind: Kind) -> list[history.Row]:
        """The rows of a kind that still count, the newest first."""
        return [self._table[place] for place in self._places(kind.key) if place in self._table]

    def recovered(self, partitions: Mapping[Key, int]) -> None:
        """Know the kinds of rows that came back from the changelog; `partitions` tells where each lies."""
        for (key, window), partition in sorted(partitions.items(), key=lambda item: item[0][1]):
            if key.startswith(_KIND) and (key, window) in self._table:
                self._seen(key.removeprefix(_KIND), partition)

    def _seen(self, key: str, partition: int) -> None:
        self._kinds[key] = partition
        self._kinds.move_to_end(key)

    def _forget_one(self, newest: str) -> None:
        """A deletion goes to the changelog of the current event's partition, so only its rows can be deleted."""
        if len(self._kinds) <= self._settings.history.max_kinds:
            return
        partition = self._kinds[newest]
        oldest = next(key for key, lies_in in self._kinds.items() if lies_in == partition)
        if oldest != newest:
            del self._kinds[oldest]
            for place in self._places(oldest):
                if place in self._table:
                    del self._table[place]

    def _places(self, key: str) -> Iterator[Key]:
        section = self._settings.history
        start_s, _ = _window(self._clock.wall_s(), section.window_s)
        for turn in range(math.ceil(section.kept_s / section.window_s) + 1):
            yield _KIND + key, _window(start_s - turn * section.window_s, section.window_s)


class Lifetimes:
    """When which row expires.  One writer, the event loop."""

    def __init__(self, settings: Streams, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._due_s: list[float] = []
        self._rows: dict[float, set[Key]] = {}

    def note(self, key: Key) -> None:
        """Have a row expire in its time, however often it is noted."""
        name, (_, end_s) = key
        kept_s = self._settings.history.kept_s if name.startswith(_KIND) else self._settings.spend_kept_s
        due_s = end_s + kept_s
        if due_s not in self._rows:
            heapq.heappush(self._due_s, due_s)
            self._rows[due_s] = set()
        self._rows[due_s].add(key)

    def take_expired(self) -> list[Key]:
        """The rows that are over, once each."""
        taken: list[Key] = []
        while self._due_s and self._due_s[0] <= self._clock.wall_s():
            taken += self._rows.pop(heapq.heappop(self._due_s))
        return taken


class _Table(faust.Table[Any, Any]):
    """A table whose rows expire by the end of their own window.

    Faust's windows have one length a table, remember each write of a row, and never expire what was recovered.
    """

    lifetimes: Lifetimes

    def _should_expire_keys(self) -> bool:
        return True

    def _maybe_set_key_ttl(self, key: Key, partition: int) -> None:  # noqa: ARG002 - Faust's signature
        self.lifetimes.note(key)

    def _maybe_del_key_ttl(self, key: Key, partition: int) -> None:
        """A deleted row expires without effect."""

    async def _del_old_keys(self) -> None:
        for key in self.lifetimes.take_expired():
            self.data.pop(key, None)


def spend_table(app: faust.App, settings: Streams, partitions: int, clock: Clock) -> Rows:
    """The table, co-partitioned with `usage`."""
    what = "Cost units spent per tenant, model and class; what each kind of request needed."
    table = _Table(app, name="spend", default=dict, partitions=partitions, help=what)
    table.lifetimes = Lifetimes(settings, clock)
    rows = Rows(table, settings, clock)
    app.tables.add(table)

    async def after_recovery() -> None:
        """Faust tells nobody of rows that came back from the changelog."""
        for key in list(table.data):
            table.lifetimes.note(key)
        # The store's only note of where a row lies.
        rows.recovered(table.data._key_partition)  # type: ignore[attr-defined] # noqa: SLF001

    table.on_recover(after_recovery)
    metrics.SPEND_ROWS.set_function(lambda: len(table.data))
    return rows


def _window(at_s: float, window_s: float) -> Window:
    start_s = at_s // window_s * window_s
    return start_s, start_s + window_s
