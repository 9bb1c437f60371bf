"""The simulated engine in real time: an asyncio shell around the iteration model.

Its time is the clock's, times `speed`.  Events happen at their planned times; a late wake-up runs what it missed, so
lateness does not add up.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

from gpu_consumers.engine import Finished, Job, Load, Piece, Progress
from gpu_consumers.engines import completions
from gpu_consumers.engines.iteration_model import PRESETS, IterationModel, Sequence
from gpu_consumers.policy import selection
from topics.clock import Clock
from topics.errors import ConfigError, EngineError
from topics.records import Tokens

STREAM_GAP_S = 0.01
"""Real seconds between the pieces of a stream; when tokens come faster, a piece carries several."""
MEAN_OUTPUT_TOKENS = 150
_WORDS = " ramp lane gate road flow wait load work unit rate time cost line turn"
_WORD_CHARS = 5
_WORD_COUNT = len(_WORDS) // _WORD_CHARS


@dataclass(frozen=True, slots=True)
class SimulatedOptions:
    """Which hardware, how fast, and its limits."""

    preset: str = "a100-8b"
    speed: float = 1.0
    """Simulated seconds per real second (> 0)."""
    max_sequences: int = 64
    chunk_tokens: int = 2048
    long_prefill_tokens: int | None = None
    """Of long prompts in an iteration while a short job is in the engine; None is no limit."""
    max_waiting: int = 1024
    """Jobs that wait inside the engine; one more is refused, as a server does with 503."""


class _Body(msgspec.Struct):
    simulated_output_tokens: int | None = None


_decode_body = msgspec.json.Decoder(_Body).decode


def output_tokens(job: Job) -> int:
    """The answer's length: what the body says, else one drawn from the id, at most `max_tokens`."""
    try:
        said = _decode_body(job.body).simulated_output_tokens
    except msgspec.MsgspecError as error:
        raise EngineError(
            "simulated_output_tokens is not a whole number, or the body no object", retryable=False
        ) from error
    if said is not None:
        return max(1, said)
    drawn = 1 + zlib.crc32(job.id.encode()) % (2 * MEAN_OUTPUT_TOKENS)
    return drawn if job.max_tokens is None else max(1, min(drawn, job.max_tokens))


def words(first: int, count: int) -> str:
    """Words of equal length from an endless round, so that a piece is a slice."""
    rounds = _WORDS * (2 + count // _WORD_COUNT)
    start = first % _WORD_COUNT * _WORD_CHARS
    return rounds[start : start + count * _WORD_CHARS]


class SimulatedEngine:
    """Runs the model on one event loop.  Invariant: the model is advanced to now before it is changed."""

    def __init__(self, options: SimulatedOptions, clock: Clock) -> None:
        self._options, self._clock = options, clock
        if options.preset not in PRESETS:
            raise ConfigError([f"the simulated engine has no preset {options.preset!r}, only {', '.join(PRESETS)}"])
        self._model = IterationModel(
            PRESETS[options.preset], options.max_sequences, options.chunk_tokens, options.long_prefill_tokens
        )
        self._origin_s = clock.mono_s()
        self._changed: dict[Sequence, asyncio.Event] = {}
        self._progress: dict[Sequence, Progress] = {}
        self._streams: set[Sequence] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.worst_late_s = 0.0
        """Largest real time between an event's planned moment and its telling; set it to 0 to measure anew."""

    def load(self) -> Load:
        """Exact."""
        model = self._model
        self._catch_up()
        for sequence, progress in self._progress.items():
            progress.output_tokens = model.tokens_made(sequence)
        total = model.hardware.kv_tokens
        return Load(model.running, model.waiting, total - model.reserved_kv_tokens, total)

    async def run(self, job: Job) -> AsyncGenerator[Piece | Finished, None]:
        """See the protocol; a job that can never fit, or one too many, is refused."""
        sequence = self._admit(job)
        changed = self._changed[sequence] = asyncio.Event()
        self._progress[sequence] = job.progress
        if job.stream:
            self._streams.add(sequence)
        self._schedule()
        created_s = self._clock.wall_s()
        told = 0
        try:
            while not sequence.is_over:
                await changed.wait()
                changed.clear()
                if self._is_closed:
                    raise EngineError("the engine was closed", retryable=True)
                made = self._model.tokens_made(sequence)
                if made > told and (job.stream or told == 0):
                    yield Piece(_piece(job, created_s, told, made) if job.stream else b"")
                told = made
        finally:
            self._forget(sequence)
        if job.stream:
            yield Piece(completions.chunk(job.id, job.model, created_s, {}, _finish_reason(job, sequence)))
        finished = _finished(job, sequence, created_s)
        if job.stream and completions.wants_usage(job.body):
            yield Piece(completions.usage_chunk(job.id, job.model, created_s, finished.tokens))
        yield finished

    async def close(self) -> None:
        """Jobs that run end with a retryable error."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for changed in self._changed.values():
            changed.set()

    def _admit(self, job: Job) -> Sequence:
        sequence = Sequence(job.id, job.prompt_tokens, output_tokens(job), is_long=selection.is_long(job.rank))
        if self._is_closed:
            raise EngineError("the engine was closed", retryable=True)
        if sequence.kv_tokens > self._model.hardware.kv_tokens:
            raise EngineError("prompt and answer exceed the engine's KV memory", retryable=False)
        if self._model.waiting >= self._options.max_waiting:
            raise EngineError("the engine's queue is full", retryable=True)
        self._model.add(sequence, job.rank, self._catch_up())
        return sequence

    def _forget(self, sequence: Sequence) -> None:
        del self._changed[sequence]
        self._streams.discard(sequence)
        progress = self._progress.pop(sequence)
        self._catch_up()
        progress.output_tokens = self._model.tokens_made(sequence)
        if not sequence.is_over:
            self._model.abort(sequence)
            # Its room may let another start long before the timer.
            self._schedule()

    def _now_s(self) -> float:
        return (self._clock.mono_s() - self._origin_s) * self._options.speed

    def _catch_up(self) -> float:
        now_s = self._now_s()
        events = self._model.advance(now_s)
        if events:
            self.worst_late_s = max(self.worst_late_s, (now_s - events[0].at_s) / self._options.speed)
        for event in events:
            changed = self._changed.get(event.sequence)
            if changed is not None:
                changed.set()
        return now_s

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_s = self._model.next_event_s()
        if next_s is None or self._is_closed:
            return
        delay_s = max(0.0, (next_s - self._now_s()) / self._options.speed)
        if self._streams:
            delay_s = min(delay_s, self._to_next_token_s())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _to_next_token_s(self) -> float:
        boundary_s = self._model.boundary_s or 0.0
        return max(STREAM_GAP_S, (boundary_s - self._now_s()) / self._options.speed)

    def _wake(self) -> None:
        self._timer = None
        self._catch_up()
        for sequence in self._streams:
            self._changed[sequence].set()
        self._schedule()


def _piece(job: Job, created_s: float, told: int, made: int) -> bytes:
    role = {"role": "assistant"} if told == 0 else {}
    return completions.chunk(job.id, job.model, created_s, {**role, "content": words(told, made - told)})


def _finished(job: Job, sequence: Sequence, created_s: float) -> Finished:
    tokens = Tokens(prompt=sequence.prompt_tokens, output=sequence.output_tokens)
    text = words(0, tokens.output)
    body = completions.whole(job.id, job.model, created_s, text, _finish_reason(job, sequence), tokens)
    return Finished(body, tokens, sequence.engine_s)


def _finish_reason(job: Job, sequence: Sequence) -> str:
    return "length" if job.max_tokens is not None and sequence.output_tokens >= job.max_tokens else "stop"
