"""Ids whose last owners were lost, or that Redis forgot: is their answer in the log already, may they run once more?"""

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from gpu_consumers import answering
from gpu_consumers.assignment import Entry
from gpu_consumers.claims import Claimed, ClaimsUnavailable
from gpu_consumers.parts import Parts
from gpu_consumers.policy import crashes
from gpu_consumers.recall import Recall

log = structlog.get_logger()


class Takeovers:
    """Touched only by the loop.

    Invariant: at most one suspect has a seat, once it was looked up.
    """

    def __init__(
        self,
        parts: Parts,
        recall: Recall,
        begin: Callable[[Entry, float], None],
        look_again: Callable[[Entry], None],
        wake: Callable[[], None],
    ) -> None:
        self._parts, self._begin, self._look_again, self._wake = parts, begin, look_again, wake
        self._gpu, self._recall = parts.settings.gpu, recall
        self._suspect: Entry | None = None
        """Whose turn it is, or was."""
        self.tasks: set[asyncio.Task[None]] = set()

    def note(self, entry: Entry, claim: Claimed) -> None:
        """Remember what the claim says about the id's past."""
        entry.since_s, entry.takeovers = claim.since_s, claim.takeovers
        entry.is_suspect = crashes.is_suspect(claim.takeovers, self._gpu.max_takeovers)

    def take_turn(self, entry: Entry) -> bool:
        """Let it be the one suspect that may take a seat, if it is one; False while another has a seat."""
        if not entry.is_suspect:
            return True
        if self._another_runs(entry):
            return False
        self._suspect = entry
        return True

    def look_up(self, entries: list[Entry]) -> None:
        """Begin those whose answers do not lie in the log already, as far as they may."""
        self._spawn(self._look_up(entries))

    def give_back(self, entry: Entry) -> None:
        """Nobody runs it here any more: let the next owner claim it at once instead of after the lease."""
        self._spawn(self._give_back(entry))

    def _another_runs(self, entry: Entry) -> bool:
        suspect = self._suspect
        return suspect is not None and suspect is not entry and suspect.has_seat

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _give_back(self, entry: Entry) -> None:
        claims = self._parts.claims
        try:
            await (claims.defer if entry.takeovers else claims.release)([entry.id])
        except ClaimsUnavailable:
            claims.let_lapse([entry.id])
        entry.assignment.finish_one()

    async def _look_up(self, entries: list[Entry]) -> None:
        found = await self._recall.find(entries)
        ready: list[Entry] = []
        waiting: list[Entry] = []
        for entry in entries:
            if entry.id in found:
                self._parts.runner.free(entry)
                self._parts.settler.note_answered(entry, found[entry.id])
            elif not self._is_still_ours(entry):
                continue
            elif entry.has_seat:
                self._sort(entry, ready, waiting)
            else:  # cancelled or expired: it only needs an answer
                ready.append(entry)
        # Before anything begins, since it may be what ends this process: those who wait must not count it as theirs.
        await self._defer(waiting)
        for entry in ready:
            if self._is_still_ours(entry):
                self._begin(entry, self._parts.clock.wall_s())
        self._wake()

    def _is_still_ours(self, entry: Entry) -> bool:
        holds = self._parts.claims.holds(entry.id)
        if not holds:
            self._parts.runner.free(entry)
            self._look_again(entry)
        return holds

    def _sort(self, entry: Entry, ready: list[Entry], waiting: list[Entry]) -> None:
        match crashes.judge(entry.takeovers, self._gpu.max_takeovers, another_runs=self._another_runs(entry)):
            case crashes.Verdict.RUN:
                self.take_turn(entry)
                ready.append(entry)
            case crashes.Verdict.WAIT:
                self._parts.runner.free(entry)
                waiting.append(entry)
            case crashes.Verdict.END:
                self._parts.runner.free(entry)
                self._give_up(entry)

    def _give_up(self, entry: Entry) -> None:
        where = entry.assignment
        log.warning("crash_loop", topic=where.topic, partition=where.partition, offset=entry.fetched.offset)
        self._parts.settler.answer(entry, answering.crash_loop(entry.takeovers))

    async def _defer(self, waiting: list[Entry]) -> None:
        """Give them back until it is their turn.  Held without being run, they could never be claimed again."""
        while waiting:
            try:
                await self._parts.claims.defer([entry.id for entry in waiting])
                break
            except ClaimsUnavailable:
                await asyncio.sleep(self._gpu.redis_retry_s)
        for entry in waiting:
            self._look_again(entry)
