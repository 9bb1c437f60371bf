"""The one reading of each period, encoded once and told to all pages that are open."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from rampmeter.console.history import QueuePoint, WaitPoint
from rampmeter.console.page import page
from rampmeter.console.settings import ConsoleSettings
from rampmeter.console.sources import Views, Watches
from rampmeter.console.watch import now
from topics.clock import Clock

_LATE_S = 10.0
"""Beyond its timeout and period, a source that has brought nothing for so long stands still."""
_RESENT_S = 20.0
"""Points that changed within it are told again, so that a page that skipped some readings misses none."""
P = TypeVar("P", WaitPoint, QueuePoint)


class Full(Exception):
    """As many pages are open as may be."""


class Board:
    """Written by the loop only.  A page that is slow skips readings; nothing is kept for it."""

    def __init__(self, settings: ConsoleSettings, watches: Watches, clock: Clock) -> None:
        self._settings, self._own, self._watches, self._clock = settings, settings.console, watches, clock
        self._latest, self._number = b"", 0
        self._moved = asyncio.Condition()
        self._published_s = clock.mono_s()
        self.clients = 0
        self.is_closed = False

    async def publish(self) -> None:
        """Make the reading of now known."""
        views, now_s = self.views(), self._clock.wall_s()
        shown = page(views, self._settings.pools, self._own, now_s)
        told = {"page": shown, **_charts(views, now_s - _RESENT_S)}
        async with self._moved:
            self._latest, self._number = _event("reading", told), self._number + 1
            self._published_s = self._clock.mono_s()
            self._moved.notify_all()

    async def run(self) -> None:
        """Publish each period until cancelled."""
        while True:
            await self.publish()
            await asyncio.sleep(self._own.period_s)

    async def close(self) -> None:
        """End all streams."""
        async with self._moved:
            self.is_closed = True
            self._moved.notify_all()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one of the places; raises Full."""
        if self.clients >= self._own.max_clients:
            raise Full
        self.clients += 1
        try:
            yield
        finally:
            self.clients -= 1

    async def readings(self) -> AsyncIterator[bytes]:
        """What the charts show until now, then each reading; the newest if several came meanwhile."""
        yield _event("history", _charts(self.views(), 0.0))
        seen = 0
        while not self.is_closed:
            async with self._moved:
                while not self.is_closed and self._number == seen:
                    await self._moved.wait()
                seen, told = self._number, self._latest
            if not self.is_closed:
                yield told

    def views(self) -> Views:
        """What each source last said; one that stands still says so."""
        now_s = self._clock.wall_s()
        late_s = self._own.read_timeout_s + self._own.period_s + _LATE_S
        return Views(*(now(watch.seen, now_s, late_s) for watch in self._watches.all()))  # type: ignore[arg-type]

    def complaint(self) -> str | None:
        """What is wrong with the console itself; None when all is well."""
        silent_s = self._clock.mono_s() - self._published_s
        if silent_s > self._own.period_s + _LATE_S:
            return f"no reading was told for {silent_s:.0f} s"
        dead = [watch.seen.name for watch in self._watches.all() if not watch.is_alive]
        return f"the readers of {', '.join(dead)} have ended" if dead else None


def _charts(views: Views, changed_since_s: float) -> dict[str, list[WaitPoint] | list[QueuePoint]]:
    lanes = views.lanes.value
    return {
        "waits": _changed(views.waits.value or (), changed_since_s),
        "queues": _changed(() if lanes is None else lanes.points, changed_since_s),
    }


def _changed(points: Sequence[P], since_s: float) -> list[P]:
    return [point for point in points if point.changed_s >= since_s]


def _event(name: str, told: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(told) + b"\n\n"
