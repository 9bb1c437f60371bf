"""From buffers into the engine: choose, claim, run.  One claim call serves all that the engine has room for."""

import asyncio
from collections.abc import Sequence

import structlog

from gpu_consumers.answering import EXPIRED, read_work
from gpu_consumers.assignment import Entry, Fetched, Release
from gpu_consumers.cancels import Cancels, Noted
from gpu_consumers.claims import Asked, Claimed, ClaimsUnavailable, Verdict
from gpu_consumers.failures import Failures
from gpu_consumers.later import Later
from gpu_consumers.parts import Parts
from gpu_consumers.policy import batching, expiry
from gpu_consumers.recall import Recall, made_s
from gpu_consumers.selecting import Selector
from gpu_consumers.takeovers import Takeovers
from gpu_consumers.tracing import Tracing
from topics.errors import DecodeError

log = structlog.get_logger()


class Dispatcher:
    """Keeps the engine full.  Touched only by the loop; `wake` may be called at any time on it.

    Invariant: every entry is in exactly one place: buffered, looked at again later, being claimed or looked up,
    running, failed, or settling.
    """

    def __init__(self, parts: Parts) -> None:
        gpu = parts.settings.gpu
        self._parts, self._gpu = parts, gpu
        self._start_limits = gpu.start_limits()
        self.selector = Selector(gpu, gpu.shares(parts.settings.pools[gpu.pool]), parts.runner, parts.clock)
        self.buffers = self.selector.buffers
        self._later = Later()
        self.cancels = Cancels(gpu.remembered_cancels, parts.settings.dedupe_window_s, parts.clock, parts.metrics)
        recall = Recall(parts.settings, parts.claims, lambda: [*self.buffers.all(), *self._later])
        self.failures = Failures(parts, self._put_back)
        self._takeovers = Takeovers(parts, recall, self.failures, self._begin, self.look_again)
        self._tracing = Tracing(parts.settings)
        self._woken = asyncio.Event()
        self._not_before_s = 0.0
        self._has_waited = False
        self.is_draining = False
        self.takes_in = True  # False while the GPU is ill: only answers that need no engine are given
        self.dispatched_units = 0.0
        self.moved_s = parts.clock.mono_s()

    @property
    def held(self) -> int:
        """Entries whose id another consumer runs."""
        return len(self._later)

    def wake(self) -> None:
        """Something arrived, ended or became due."""
        self._woken.set()

    async def run(self) -> None:
        """Dispatch for ever; the caller's timer wakes it for what becomes due by time alone."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            self._accept()
            while not self.is_draining and await self._turn():
                self._accept()
            self._has_waited = self._has_waited and self._waits_for_room()

    def take_waited(self) -> bool:
        """Whether at every moment since the last call work waited for nothing but room in the engine."""
        has_waited, self._has_waited = self._has_waited, self._waits_for_room()
        return has_waited and self._has_waited

    def look_again(self, entry: Entry) -> None:
        """Another consumer holds this id: ask again a little later.  Its offset stays unfinished."""
        entry.begin_anew()
        if entry.assignment.released:
            entry.assignment.finish_one()
        else:
            self.cancels.applies(entry)
            self._later.add(entry, self._parts.clock.mono_s() + self._gpu.held_retry_s)

    def give_back(self, entry: Entry) -> None:
        """Nobody runs it here any more: its next owner may claim it at once."""
        self._takeovers.give_back(entry)

    def drop_waiting(self) -> None:
        """Forget what only waits; at the end of the process its next owner fetches it again."""
        self._later.drop()

    def _accept(self) -> None:
        self._cancel(self._parts.orders.take())
        for item in self._parts.inbox.take():
            if isinstance(item, Release):
                self._release(item)
            else:
                for fetched in item:
                    self._buffer(fetched)

    def _buffer(self, fetched: Fetched) -> None:
        assignment = fetched.assignment
        if assignment.released:
            assignment.take(fetched)
            return
        try:
            work = read_work(fetched.value)
        except DecodeError as error:
            assignment.take(fetched)
            assignment.inflight += 1
            self._parts.settler.give_up_unreadable(fetched, error)
            return
        model = self._parts.settings.models.get(work.request.model)
        entry = Entry(fetched, work, batching.ask_of(work, model), self._parts.clock.mono_s())
        self.cancels.applies(entry)
        self.failures.recognise(entry)
        self.buffers.add(entry)

    def _cancel(self, orders: list[Noted]) -> None:
        """Apply cancels to all that is here; what is being claimed or looked up is asked about before it begins."""
        ids = self.cancels.note(orders)
        if not ids:
            return
        for request_id in ids:
            entry = self._parts.runner.find(request_id)
            if entry is not None and entry.order is None and self.cancels.applies(entry):
                self._parts.runner.abort(entry)
        self.buffers.cancel(lambda entry: entry.id in ids and self.cancels.applies(entry))
        self._later.cancel(lambda entry: entry.id in ids and self.cancels.applies(entry), self._parts.clock.mono_s())

    def _release(self, going: Release) -> None:
        self.buffers.drop(going.assignments)
        self._later.drop(going.assignments)
        for assignment in going.assignments:
            assignment.release()
        if going.aborts:
            self._parts.runner.hand_over(going.assignments)

    async def _turn(self) -> bool:
        """Claim and start one batch; False when there is nothing to do now."""
        parts = self._parts
        now_s = parts.clock.mono_s()
        self.failures.look()
        if self._must_wait(now_s):
            return False
        batch = self._ending()
        self.selector.begin_turn()
        if self.takes_in:
            batch += self._later.take_due(now_s, self._gpu.claim_batch - len(batch), self._seat_again)
            batch += self.selector.select(self._gpu.claim_batch - len(batch), self.failures.may_run)
        if not batch:
            if self.selector.due_s is not None:
                asyncio.get_running_loop().call_later(self.selector.due_s - now_s, self.wake)
            return False
        asked = self._without_held(batch)
        try:
            claimed = await parts.claims.claim([self._asked(entry) for entry in asked])
        except ClaimsUnavailable as error:
            self._postpone(asked, error)
            return False
        self._apply(asked, claimed)
        return True

    def _asked(self, entry: Entry) -> Asked:
        return Asked(entry.id, entry.work.attempt, made_s(entry, self._parts.settings.dedupe_window_s))

    def _must_wait(self, now_s: float) -> bool:
        return now_s < self._not_before_s or self._parts.settler.open >= self._gpu.unsettled_requests

    def _waits_for_room(self) -> bool:
        is_free = self.takes_in and not self.is_draining and not self._must_wait(self._parts.clock.mono_s())
        return is_free and bool(self.buffers.waiting())

    def _ending(self) -> list[Entry]:
        """Buffered entries that only need an answer: they take no room."""
        limit = self._gpu.claim_batch
        entries = self.buffers.take_cancelled(limit)
        entries += self.buffers.take_expired(self._parts.clock.wall_s(), limit - len(entries))
        for entry in entries:
            entry.assignment.inflight += 1
        return entries

    def _seat_again(self, entry: Entry) -> bool:
        """Take a seat for one that another held, if it is its turn."""
        return self.failures.may_run(entry) and self.selector.seat(entry)

    def _without_held(self, batch: list[Entry]) -> list[Entry]:
        """The batch without ids that this process has already: an aged copy, or a partition that came back.

        One that is settling counts although its claim may be lost: two ends of an id here would be taken for one.
        """
        asked: dict[str, Entry] = {}
        for entry in batch:
            is_here = self._parts.claims.holds(entry.id) or self._parts.settler.is_settling(entry.id)
            if entry.id in asked or is_here:
                self._parts.runner.free(entry)
                self.look_again(entry)
            else:
                asked[entry.id] = entry
        return list(asked.values())

    def _postpone(self, asked: list[Entry], error: ClaimsUnavailable) -> None:
        """Redis is away: nothing new runs until it is back."""
        log.warning("redis_unavailable", error=str(error))
        self._not_before_s = self._parts.clock.mono_s() + self._gpu.redis_retry_s
        self._put_back(asked)

    def _put_back(self, entries: list[Entry]) -> None:
        """Back to their places in the buffers, as if they had never been chosen."""
        for entry in entries:
            self._parts.runner.free(entry)
            entry.begin_anew()
            entry.assignment.finish_one()
            self.cancels.applies(entry)
        self.buffers.put_back(entries)
        self.wake()

    def _apply(self, asked: list[Entry], claimed: Sequence[Claimed]) -> None:
        parts = self._parts
        now_s = parts.clock.wall_s()
        started, unknown = [], []
        for entry, claim in zip(asked, claimed, strict=True):
            entry.is_unclaimed = claim.verdict is Verdict.UNCLAIMED
            match claim.verdict:
                case Verdict.MINE | Verdict.UNCLAIMED:
                    self._takeovers.note(entry, claim)
                    started.append(entry)
                    self._begin(entry, now_s)
                case Verdict.TAKEOVER | Verdict.FORGOTTEN:
                    self._takeovers.note(entry, claim)
                    unknown.append(entry)
                case Verdict.HELD:
                    parts.runner.free(entry)
                    self.look_again(entry)
                case Verdict.DONE:
                    parts.runner.free(entry)
                    parts.settler.finish(entry.fetched)
            parts.metrics.claims.labels(claim.verdict.name.lower()).inc()
        if started:
            parts.metrics.batch.observe(len(started))
            self._tracing.batch(started, now_s)
        self.moved_s = parts.clock.mono_s()
        if unknown:
            self._takeovers.look_up(unknown)

    def _begin(self, entry: Entry, now_s: float) -> None:
        if self.cancels.applies(entry) and entry.order is not None:
            self._parts.runner.free(entry)
            self._parts.settler.cancel(entry, entry.order)
        elif expiry.is_expired(entry.work, now_s, self._start_limits):
            self._parts.runner.free(entry)
            self._parts.settler.answer(entry, EXPIRED)
        elif self.is_draining or entry.assignment.released:
            self._parts.runner.free(entry)
            self._takeovers.give_back(entry)
        else:
            self.selector.charge(entry)
            self.dispatched_units += entry.ask.cost_units
            self._parts.runner.start(entry)
