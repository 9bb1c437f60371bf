"""Ids whose last owners were lost, or that Redis forgot: is their answer in the log already, may they run once more?"""

from collections.abc import Callable

import structlog

from gpu_consumers import answering
from gpu_consumers.assignment import Entry
from gpu_consumers.claims import Claimed, ClaimsUnavailable
from gpu_consumers.failures import Failures
from gpu_consumers.parts import Parts
from gpu_consumers.policy import crashes
from gpu_consumers.recall import Recall
from gpu_consumers.tasks import Tasks
from gpu_consumers.tracing import Tracing

log = structlog.get_logger()


class Takeovers:
    """Touched only by the loop.

    Invariant: of those over which several owners were lost at most one has a seat, once it was looked up.
    """

    def __init__(
        self,
        parts: Parts,
        recall: Recall,
        failures: Failures,
        begin: Callable[[Entry, float], None],
        look_again: Callable[[Entry], None],
    ) -> None:
        self._parts, self._failures, self._begin, self._look_again = parts, failures, begin, look_again
        self._gpu, self._recall = parts.settings.gpu, recall
        self._tracing = Tracing(parts.settings)
        self.tasks = Tasks()

    def note(self, entry: Entry, claim: Claimed) -> None:
        """Remember what the claim says about the id's past."""
        entry.since_s, entry.takeovers = claim.since_s, claim.takeovers
        if crashes.is_suspect(claim.takeovers, self._gpu.max_takeovers):
            self._failures.accuse(entry)

    def look_up(self, entries: list[Entry]) -> None:
        """Begin those whose answers do not lie in the log already, as far as they may."""
        self.tasks.spawn(self._look_up(entries))

    def give_back(self, entry: Entry) -> None:
        """Nobody runs it here any more: let the next owner claim it at once instead of after the lease."""
        self.tasks.spawn(self._give_back(entry))

    async def _give_back(self, entry: Entry) -> None:
        claims = self._parts.claims
        try:
            await (claims.defer if entry.takeovers else claims.release)([entry.id])
        except ClaimsUnavailable:
            claims.let_lapse([entry.id])
        entry.assignment.finish_one()

    async def _look_up(self, entries: list[Entry]) -> None:
        # First of all, since one of the others may be what ends this process: they must not count it as theirs.
        waiting = [entry for entry in entries if entry.has_seat and not self._failures.may_run(entry)]
        await self._failures.give_back(waiting)
        entries = [entry for entry in entries if entry not in waiting]
        found = await self._recall.find(entries)
        begun, now_s = [], self._parts.clock.wall_s()
        for entry in entries:
            if entry.id in found:
                self._parts.runner.free(entry)
                self._parts.settler.note_answered(entry, found[entry.id])
            elif self._is_still_ours(entry):
                if entry.has_seat and crashes.is_over(entry.takeovers, self._gpu.max_takeovers):
                    self._give_up(entry)
                else:  # cancelled or expired if it has no seat: it only needs an answer
                    begun.append(entry)
                    self._begin(entry, now_s)
        if begun:
            self._tracing.batch(begun, now_s)

    def _is_still_ours(self, entry: Entry) -> bool:
        holds = self._parts.claims.holds(entry.id)
        if not holds:
            self._parts.runner.free(entry)
            self._look_again(entry)
        return holds

    def _give_up(self, entry: Entry) -> None:
        self._parts.runner.free(entry)
        where = entry.assignment
        log.warning("crash_loop", topic=where.topic, partition=where.partition, offset=entry.fetched.offset)
        self._parts.settler.answer(entry, answering.crash_loop(entry.takeovers))
