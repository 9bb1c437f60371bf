"""From buffers into the engine: choose, claim, run.  One claim call serves all that the engine has room for."""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog
from confluent_kafka import KafkaException

from gpu_consumers.answering import EXPIRED, read_work
from gpu_consumers.assignment import Assignment, Entry, Fetched, Release
from gpu_consumers.buffers import Buffers
from gpu_consumers.claims import Claimed, Claims, ClaimsUnavailable, Verdict
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.metrics import Metrics
from gpu_consumers.policy import batching, expiry, selection
from gpu_consumers.running import Runner
from gpu_consumers.settings import GpuSettings
from gpu_consumers.settling import Settler
from topics import answers, catalog
from topics.clock import Clock
from topics.errors import DecodeError
from topics.records import Reply

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Parts:
    """What a dispatcher works with."""

    settings: GpuSettings
    inbox: "Mailbox[list[Fetched] | Release]"
    claims: Claims
    settler: Settler
    runner: Runner
    clock: Clock
    metrics: Metrics


class Dispatcher:
    """Keeps the engine full.  Touched only by the loop; `wake` may be called at any time on it.

    Invariant: every entry is in exactly one place: buffered, looked at again later, being claimed or looked up,
    running, or settling.
    """

    def __init__(self, parts: Parts) -> None:
        gpu = parts.settings.gpu
        self._parts, self._gpu = parts, gpu
        self._shares = selection.Shares(aged_ratio=gpu.aged_ratio, long_window_ratio=gpu.long_window_ratio)
        self._credit = selection.Credit()
        self.buffers = Buffers()
        self._later: deque[tuple[float, Entry]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._woken = asyncio.Event()
        self._not_before_s = 0.0
        self.is_draining = False
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

    def look_again(self, entry: Entry) -> None:
        """Another consumer holds this id: ask again a little later.  Its offset stays unfinished."""
        if entry.assignment.released:
            entry.assignment.finish_one()
        else:
            self._later.append((self._parts.clock.mono_s() + self._gpu.held_retry_s, entry))

    def drop_waiting(self) -> None:
        """Forget what only waits; at the end of the process its next owner fetches it again."""
        for _, entry in self._later:
            entry.assignment.finish_one()
        self._later.clear()

    def _accept(self) -> None:
        for item in self._parts.inbox.take():
            if isinstance(item, Release):
                self._release(item.assignments)
            else:
                for fetched in item:
                    self._buffer(fetched)

    def _buffer(self, fetched: Fetched) -> None:
        assignment = fetched.assignment
        if assignment.released:
            assignment.taken += 1
            return
        try:
            work = read_work(fetched.value)
        except DecodeError as error:
            assignment.taken += 1
            assignment.inflight += 1
            self._parts.settler.give_up_unreadable(fetched, error)
            return
        price = work.price
        ask = batching.Ask(work.request.prompt_tokens, price.expected_output_tokens, price.cost_units)
        self.buffers.add(Entry(fetched, work, ask))

    def _release(self, assignments: list[Assignment]) -> None:
        self.buffers.drop(assignments)
        kept: deque[tuple[float, Entry]] = deque()
        for due_s, entry in self._later:
            if entry.assignment in assignments:
                entry.assignment.finish_one()
            else:
                kept.append((due_s, entry))
        self._later = kept
        for assignment in assignments:
            assignment.release()

    async def _turn(self) -> bool:
        """Claim and start one batch; False when there is nothing to do now."""
        parts = self._parts
        now_s = parts.clock.mono_s()
        if now_s < self._not_before_s or parts.settler.open >= self._gpu.unsettled_requests:
            return False
        batch = self._expired() + self._due(now_s)
        batch += self._select(self._gpu.claim_batch - len(batch))
        if not batch:
            return False
        asked = self._without_held(batch)
        try:
            claimed = await parts.claims.claim([(entry.id, entry.work.attempt) for entry in asked])
        except ClaimsUnavailable as error:
            self._postpone(asked, error)
            return False
        self._apply(asked, claimed)
        return True

    def _expired(self) -> list[Entry]:
        entries = self.buffers.take_expired(self._parts.clock.wall_s(), self._gpu.claim_batch)
        for entry in entries:
            entry.assignment.inflight += 1
        return entries

    def _due(self, now_s: float) -> list[Entry]:
        """Entries to look at again, as far as the engine could take them."""
        due: list[Entry] = []
        while self._later and self._later[0][0] <= now_s and len(due) < self._gpu.claim_batch:
            entry = self._later[0][1]
            if not self._parts.runner.has_room(entry):
                break
            self._later.popleft()
            self._parts.runner.reserve(entry)
            due.append(entry)
        return due

    def _select(self, limit: int) -> list[Entry]:
        """Take what the engine has room for, lane by lane as the shares say."""
        chosen: list[Entry] = []
        buffers, runner = self.buffers, self._parts.runner
        while len(chosen) < limit:
            waiting = buffers.waiting()
            window = selection.Window(runner.longs, self._gpu.window_requests)
            lane = selection.choose(self._shares, self._credit, waiting, window)
            entry = None if lane is None else buffers.head(lane)
            if lane is None or entry is None or not runner.has_room(entry):
                break
            self._credit = selection.charge(self._shares, self._credit, waiting, lane, entry.ask.cost_units)
            buffers.take(entry)
            entry.assignment.inflight += 1
            runner.reserve(entry)
            chosen.append(entry)
        return chosen

    def _without_held(self, batch: list[Entry]) -> list[Entry]:
        """The batch without ids that this process runs already: an aged copy, or a partition that came back."""
        asked: dict[str, Entry] = {}
        for entry in batch:
            if entry.id in asked or self._parts.claims.holds(entry.id):
                self._parts.runner.free(entry)
                self.look_again(entry)
            else:
                asked[entry.id] = entry
        return list(asked.values())

    def _postpone(self, asked: list[Entry], error: ClaimsUnavailable) -> None:
        """Redis is away: nothing new runs until it is back."""
        log.warning("redis_unavailable", error=str(error))
        self._not_before_s = self._parts.clock.mono_s() + self._gpu.redis_retry_s
        for entry in asked:
            self._parts.runner.free(entry)
            entry.assignment.finish_one()
        self.buffers.put_back(asked)

    def _apply(self, asked: list[Entry], claimed: Sequence[Claimed]) -> None:
        parts = self._parts
        now_s = parts.clock.wall_s()
        started, takeovers = 0, []
        for entry, claim in zip(asked, claimed, strict=True):
            match claim.verdict:
                case Verdict.MINE:
                    started += 1
                    self._begin(entry, now_s)
                case Verdict.TAKEOVER:
                    entry.since_s = claim.since_s
                    takeovers.append(entry)
                case Verdict.HELD:
                    parts.runner.free(entry)
                    self.look_again(entry)
                case Verdict.DONE:
                    parts.runner.free(entry)
                    parts.settler.finish(entry.fetched)
            parts.metrics.claims.labels(claim.verdict.name.lower()).inc()
        if started:
            parts.metrics.batch.observe(started)
        self.moved_s = parts.clock.mono_s()
        if takeovers:
            self._spawn(self._look_up(takeovers))

    def _begin(self, entry: Entry, now_s: float) -> None:
        if expiry.is_expired(entry.work, now_s):
            self._parts.runner.free(entry)
            self._parts.settler.answer(entry, EXPIRED)
        elif self.is_draining or entry.assignment.released:
            self._parts.runner.free(entry)
            self._spawn(self._give_back(entry))
        else:
            self.dispatched_units += entry.ask.cost_units
            self._parts.runner.start(entry)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _give_back(self, entry: Entry) -> None:
        """Nobody runs it here any more: let the next owner claim it at once instead of after the lease."""
        with suppress(ClaimsUnavailable):
            await self._parts.claims.release([entry.id])
        entry.assignment.finish_one()

    async def _look_up(self, entries: list[Entry]) -> None:
        """Run taken-over ids only when their answers do not lie in the log already."""
        while True:
            try:
                found = await self._find(entries)
                break
            except KafkaException as error:
                log.warning("lookup_failed", error=error.args[0].name(), ids=len(entries))
                await asyncio.sleep(self._gpu.held_retry_s)
        for entry in entries:
            if entry.id in found:
                self._parts.runner.free(entry)
                self._parts.settler.note_answered(entry, found[entry.id])
            elif not self._parts.claims.holds(entry.id):
                self._parts.runner.free(entry)
                self.look_again(entry)
            else:
                self._begin(entry, self._parts.clock.wall_s())
        self.wake()

    async def _find(self, entries: list[Entry]) -> dict[str, Reply]:
        found: dict[str, Reply] = {}
        settings = self._parts.settings
        default = settings.topic(catalog.default_reply_name(settings))
        for topic in {default, *(entry.work.request.reply.topic for entry in entries)}:
            ids = [entry.id for entry in entries if topic in {default, entry.work.request.reply.topic}]
            since_s = min(entry.since_s for entry in entries)
            found |= await asyncio.to_thread(answers.find, settings, ids, topic, since_s)
        return found
