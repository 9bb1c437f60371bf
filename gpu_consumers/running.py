"""Attempts in the engine: room for them, their pieces, their ends."""

import asyncio
from collections.abc import Callable, Collection

import structlog

from gpu_consumers.answering import CANCELLED, NO_TOKENS, Ending
from gpu_consumers.assignment import Assignment, Entry
from gpu_consumers.engine import Engine, Finished, Job
from gpu_consumers.policy import capacity, selection
from gpu_consumers.seats import Seats
from gpu_consumers.settings import Gpu
from gpu_consumers.settling import Settler
from topics import trace_context
from topics.clock import Clock
from topics.errors import DependencyDown, EngineError
from topics.outcomes import Outcome, Reason
from topics.records import Tokens

log = structlog.get_logger()


class Runner:
    """Runs claimed entries, one task each.  Touched only by the loop.

    Invariant: each start ends in the settler or in one of `on_fenced`, `on_handed_over`, `on_untried` and `on_broken`,
    but for those that the end of the engine or of the process cuts off; only ids of attempts in the engine are fenced.
    """

    def __init__(self, gpu: Gpu, engine: Engine, settler: Settler, clock: Clock) -> None:
        self._gpu, self._engine, self._settler, self._clock = gpu, engine, settler, clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._entries: dict[str, Entry] = {}
        self._fenced: set[str] = set()
        self._is_stopping = False
        self.seats = Seats(gpu)
        self.has_finished = False
        """An attempt came to its end: the engine is warm."""
        self._left_units = 0.0
        self.latency_s: float | None = None
        """Moving average from start to end of an attempt; None before the first."""
        self.ttft_s: float | None = None
        """The same from start to first token."""
        self.failure: DependencyDown | None = None
        """The engine died: nothing enters it any more, and the process has to end."""
        self.moved_s = clock.mono_s()
        self._made_tokens = 0
        self.on_room: Callable[[], None] = lambda: None
        self.on_fenced: Callable[[Entry], None] = lambda _: None
        self.on_handed_over: Callable[[Entry], None] = lambda _: None
        self.on_untried: Callable[[Entry], None] = lambda _: None
        self.on_broken: Callable[[Entry, EngineError], None] = self.charge
        self.refresh()

    @property
    def running(self) -> int:
        """Attempts in the engine."""
        return len(self._tasks)

    def find(self, request_id: str) -> Entry | None:
        """The entry of an attempt in the engine."""
        return self._entries.get(request_id)

    def done_units(self) -> float:
        """Cost of all that the engine has done so far, unfinished attempts included, as of the last `refresh`."""
        return self._left_units + sum(_done_units(entry) for entry in self._entries.values())

    def refresh(self) -> None:
        """Read the engine's load, limits and progress anew: an attempt that does not stream is silent to its end."""
        self.load = self._engine.load()
        self.seats.refresh(self.load.total_kv_tokens)
        made_tokens = sum(entry.progress.output_tokens for entry in self._entries.values())
        if made_tokens != self._made_tokens:
            self._made_tokens, self.moved_s = made_tokens, self._clock.mono_s()

    def has_room(self, entry: Entry) -> bool:
        """Tell whether the engine may take it now."""
        return self.failure is None and self.load.closed is None and self.seats.has_room(entry)

    def reserve(self, entry: Entry) -> None:
        """Give it a seat before it is claimed, so that the next choice counts it."""
        self.seats.reserve(entry)

    def free(self, entry: Entry) -> None:
        """Take its seat back; harmless on one without."""
        self.seats.free(entry)

    def start(self, entry: Entry) -> None:
        """Run an entry with a seat whose id is claimed."""
        self._entries[entry.id] = entry
        self._tasks[entry.id] = asyncio.create_task(self._run(entry))

    def abort(self, entry: Entry) -> None:
        """End an attempt that is in the engine.

        Before its task has begun it cannot be cancelled, since nothing of it would run then: it looks for itself.
        """
        if entry.started_s is not None:
            self._tasks[entry.id].cancel()

    def abort_lost(self, ids: Collection[str]) -> None:
        """Stop attempts whose claim was lost; what is settling decides for itself."""
        for request_id in ids:
            entry = self._entries.get(request_id)
            if entry is not None:
                self._fenced.add(request_id)
                self.abort(entry)

    def hand_over(self, assignments: Collection[Assignment]) -> None:
        """Abort what runs of partitions that went: their next owner begins it anew."""
        for entry in list(self._entries.values()):
            if entry.assignment in assignments:
                entry.gives_way = True
                self.abort(entry)

    async def stop(self) -> list[Entry]:
        """Abort everything and return it; it stays unfinished."""
        self._is_stopping = True
        running = list(self._entries.values())
        ends = list(self._tasks.values())
        for entry in running:
            self.abort(entry)
        await asyncio.gather(*ends, return_exceptions=True)
        return [entry for entry in running if not self._settler.is_settling(entry.id)]

    async def _run(self, entry: Entry) -> None:
        since_s = self._clock.mono_s()
        try:
            ending = await self._attempt(entry)
        except asyncio.CancelledError:
            was_fenced = self._leave(entry, since_s)
            self._aborted(entry, was_fenced=was_fenced)
            raise
        except EngineError as error:
            self._leave(entry, since_s)
            self._failed(entry, error)
        except Exception as error:  # noqa: BLE001 - the record boundary: one bad request must not end the process
            log.error("engine_bug", id=entry.id, error=type(error).__name__)  # noqa: TRY400 - its text may hold a prompt
            self._leave(entry, since_s)
            self._failed(entry, EngineError(f"the engine broke: {type(error).__name__}", retryable=True))
        else:
            self.has_finished = True
            self._left_units += entry.ask.cost_units - _done_units(entry)
            self._leave(entry, since_s)
            self._settler.answer(entry, ending)
        self.on_room()

    async def _attempt(self, entry: Entry) -> Ending:
        if self._is_stopping or entry.gives_way or entry.order is not None or entry.id in self._fenced:
            raise asyncio.CancelledError
        request = entry.work.request
        entry.started_s = self._clock.wall_s()
        job = Job(
            id=request.id,
            model=request.model,
            body=bytes(request.body),
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            rank=selection.rank(entry.lane),
            stream=request.stream,
            progress=entry.progress,
            trace=trace_context.of(request),
        )
        ending = None
        async for item in self._engine.run(job):
            if isinstance(item, Finished):
                ending = Ending(Outcome.COMPLETED, tokens=item.tokens, body=item.body, engine_s=item.engine_s)
            else:
                self._on_piece(entry)
                if item.data and request.stream:
                    await self._settler.chunk(entry, item.data)
        if ending is None:
            raise EngineError("the engine ended without an answer", retryable=True)
        return ending

    def _on_piece(self, entry: Entry) -> None:
        self.moved_s = self._clock.mono_s()
        if entry.first_token_s is None:
            has_room = self.seats.prefilled(entry)
            entry.first_token_s = self._clock.wall_s()
            if entry.started_s is not None:
                self.ttft_s = capacity.averaged(self.ttft_s, max(0.0, entry.first_token_s - entry.started_s))
            if has_room:
                self.on_room()

    def _leave(self, entry: Entry, since_s: float) -> bool:
        """Take it out of all that counts it; tells whether its claim was lost, and forgets that."""
        was_fenced = entry.id in self._fenced
        self._fenced.discard(entry.id)
        self.moved_s = self._clock.mono_s()
        self._tasks.pop(entry.id, None)
        self._entries.pop(entry.id, None)
        self._left_units += _done_units(entry)
        self.free(entry)
        self.latency_s = capacity.averaged(self.latency_s, self.moved_s - since_s)
        return was_fenced

    def charge(self, entry: Entry, error: EngineError) -> None:
        """Count a failed attempt: another one is made later, or it was the last."""
        attempt = entry.work.attempt
        if attempt >= self._gpu.max_attempts:
            detail = f"{attempt} attempts failed; the last: {error.detail}"
            self._settler.answer(entry, Ending(error.outcome, Reason.ATTEMPTS_EXHAUSTED, detail, _tokens(entry)))
        else:
            self._settler.retry(entry, _tokens(entry))

    def spare(self, entry: Entry) -> None:
        """Tell what an attempt used that does not count."""
        self._settler.note_aborted(entry, _tokens(entry))

    def _failed(self, entry: Entry, error: EngineError) -> None:
        if error.fatal and self.failure is None:
            log.error("engine_dead", error=error.detail)
            self.failure = DependencyDown("the engine died", self._gpu.engine, "Its messages above say why.")
        if not error.retryable:
            self._settler.answer(entry, Ending(error.outcome, Reason.ENGINE_ERROR, error.detail, _tokens(entry)))
        elif error.fatal:
            # The process ends with its engine.  The claim is left, so that the next owner counts a loss: see `crashes`.
            self.spare(entry)
            entry.assignment.finish_one()
        elif entry.gives_way:  # it would have ended here anyway
            self._aborted(entry, was_fenced=False)
        elif error.untried and self._may_wait(entry):
            self.refresh()
            self.on_untried(entry)
        else:
            self.on_broken(entry, error)

    def _may_wait(self, entry: Entry) -> bool:
        """Whether it may be refused once more without that being an attempt."""
        now_s = self._clock.mono_s()
        if entry.refused_since_s is None:
            entry.refused_since_s = now_s
        return now_s - entry.refused_since_s < self._gpu.refused_wait_s

    def _aborted(self, entry: Entry, *, was_fenced: bool) -> None:
        if was_fenced:
            self._settler.note_fenced(entry, _tokens(entry))
            self.on_fenced(entry)
            self.on_room()
        elif entry.order is not None:
            ending = CANCELLED if entry.started_s is None else _cancelled(entry)
            self._settler.cancel(entry, entry.order, ending)
            self.on_room()
        else:
            self._settler.note_aborted(entry, _tokens(entry))
            if entry.gives_way and not self._is_stopping:
                self.on_handed_over(entry)
                self.on_room()
            else:
                entry.assignment.finish_one()


def _tokens(entry: Entry) -> Tokens:
    """What an attempt that did not come to its end used: nothing before the prompt was read."""
    output = entry.progress.output_tokens
    if entry.first_token_s is None and not output:
        return NO_TOKENS
    return Tokens(prompt=entry.work.request.prompt_tokens, output=max(1, output))


def _cancelled(entry: Entry) -> Ending:
    return Ending(Outcome.CANCELLED, Reason.CANCELLED, "cancelled while it ran", _tokens(entry))


def _done_units(entry: Entry) -> float:
    return 0.0 if entry.first_token_s is None else capacity.done_units(entry.ask, entry.progress.output_tokens)
