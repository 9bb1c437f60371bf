"""Attempts that failed for no fault that is known to be their own: back to their lane, tried apart, or charged.

An engine that dies fails all that it ran, and one that is busy or away fails what it never ran.  Neither may use up
attempts: only who fails alone is charged one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

import structlog

from gpu_consumers.assignment import Entry
from gpu_consumers.claims import ClaimsUnavailable
from gpu_consumers.parts import Parts
from gpu_consumers.policy import bisect
from gpu_consumers.tasks import Tasks
from topics.errors import EngineError

log = structlog.get_logger()

GATHER_S = 0.1
"""Who fails within this time failed together.  Too small: an engine's death is taken for many faults.  Too large: an
attempt that failed alone is made again as much later."""
_REMEMBERED = 1000
"""Ids that failed alone: their next attempts are tried apart.  Too small: one that comes back takes others along."""


class Failures:
    """Touched only by the loop.

    Invariant: an entry that is here has its claim and no seat; it leaves to the buffers or to the settler.
    """

    def __init__(self, parts: Parts, put_back: Callable[[list[Entry]], None]) -> None:
        self._parts, self._put_back = parts, put_back
        self._retry_s = parts.settings.gpu.redis_retry_s
        self._goes_without = parts.settings.gpu.without_redis == "run"
        self._trials = bisect.Trials()
        self._suspects: set[Entry] = set()
        self._failed: dict[Entry, EngineError] = {}
        self._since_s = 0.0
        self._returning: set[Entry] = set()
        self._charged: OrderedDict[str, None] = OrderedDict()
        self.tasks = Tasks()

    def may_run(self, entry: Entry) -> bool:
        """False for a suspect whose turn it is not."""
        return not entry.is_suspect or entry.id in self._trials.running or entry.id not in self._trials.suspects

    def accuse(self, entry: Entry) -> None:
        """Have it tried apart from other suspects."""
        entry.is_suspect = True
        self._suspects.add(entry)
        self._trials = self._trials.accuse(entry.id)

    def recognise(self, entry: Entry) -> None:
        """Accuse one that has just come, if it is known here."""
        if entry.id in self._charged or entry.id in self._trials.suspects:
            self.accuse(entry)

    def untried(self, entry: Entry) -> None:
        """The engine did not take it: it goes back as if it had never been chosen."""
        self.tasks.spawn(self.give_back([entry]))

    def broke(self, entry: Entry, error: EngineError) -> None:
        """It failed, maybe for a fault of another that ran beside it."""
        if not self._failed:
            self._since_s = self._parts.clock.mono_s()
        self._failed[entry] = error

    def look(self) -> None:
        """See who is still suspected and, once it is clear who failed together, what follows."""
        self._suspects = {entry for entry in self._suspects if self._is_here(entry)}
        self._trials = self._trials.keep({entry.id for entry in self._suspects})
        if self._failed and self._parts.clock.mono_s() - self._since_s >= GATHER_S:
            self._judge()

    def stop(self) -> list[Entry]:
        """Judge nobody any more, and return all whose claims are held here; they stay unfinished."""
        failed, self._failed = list(self._failed), {}
        for entry in failed:
            self._parts.runner.spare(entry)
            entry.assignment.finish_one()
        return [*failed, *self._returning]

    async def give_back(self, entries: list[Entry]) -> None:
        """Give their claims back, then the entries to the buffers: held without being run, nobody could claim them."""
        self._returning.update(entries)
        claims = self._parts.claims
        await self._give_until_taken(claims.defer, [entry.id for entry in entries if entry.takeovers])
        await self._give_until_taken(claims.release, [entry.id for entry in entries if not entry.takeovers])
        self._returning.difference_update(entries)
        self._put_back(entries)

    async def _give_until_taken(self, give: Callable[[list[str]], Awaitable[None]], ids: list[str]) -> None:
        while ids:
            try:
                await give(ids)
            except ClaimsUnavailable:
                if not self._goes_without:
                    await asyncio.sleep(self._retry_s)
                    continue
                self._parts.claims.let_lapse(ids)
            return

    def _is_here(self, entry: Entry) -> bool:
        return entry.buffered or entry.has_seat or entry in self._failed or entry in self._returning

    def _judge(self) -> None:
        failed, self._failed = self._failed, {}
        verdict = bisect.judge(self._trials, frozenset(entry.id for entry in failed))
        self._trials = verdict.trials
        again = [entry for entry in failed if entry.id not in verdict.charged]
        for entry, error in failed.items():
            if entry.id in verdict.charged:
                self._remember(entry.id)
                self._parts.runner.charge(entry, error)
        self._suspect(again)
        if again:
            log.warning("failed_together", requests=len(again), suspects=len(self._trials.suspects))
            self.tasks.spawn(self.give_back(again))

    def _suspect(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._parts.runner.spare(entry)
            entry.is_suspect = entry.id in self._trials.suspects
            if entry.is_suspect:
                self._suspects.add(entry)

    def _remember(self, request_id: str) -> None:
        self._charged[request_id] = None
        while len(self._charged) > _REMEMBERED:
            self._charged.popitem(last=False)
