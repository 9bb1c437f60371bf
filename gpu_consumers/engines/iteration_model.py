"""The simulated engine's pure core: iterations of a continuously batching engine in virtual time.

An iteration lasts base + per_token * max(0, T - 128) + per_kv_token * resident KV, where T = one token per decoding
sequence plus a chunk of prefill.  Equal iterations are taken in one step: the cost is per event, not per token.
"""

import heapq
import math
from dataclasses import dataclass
from enum import Enum

import msgspec

FREE_TOKENS = 128
"""Tokens that an iteration takes along within its base time."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Constants of one model on one GPU type, fitted to published kernel profiles."""

    base_s: float
    per_token_s: float
    per_kv_token_s: float
    kv_tokens: int


PRESETS = {
    "a100-8b": Hardware(0.0115, 67e-6, 0.087e-6, 400_000),
    "h100-8b": Hardware(0.0065, 22e-6, 0.05e-6, 400_000),
    "a100-70b-tp4": Hardware(0.026, 160e-6, 0.17e-6, 430_000),
    "h100-70b-tp4": Hardware(0.0165, 55e-6, 0.12e-6, 430_000),
}


class Mark(Enum):
    """What can happen to a sequence."""

    FIRST_TOKEN = "first_token"  # noqa: S105 - not a password
    FINISHED = "finished"


class _State(Enum):
    WAITING = 0
    PREFILLING = 1
    DECODING = 2
    OVER = 3


_WAITING, _PREFILLING, _DECODING, _OVER = _State  # one look-up instead of two, in each iteration


class Sequence:
    """One job in the model; written only by the model."""

    __slots__ = (
        "arrival", "engine_s", "first_iteration", "id", "is_long", "kv_tokens", "left", "output_tokens",
        "prompt_tokens", "state",
    )  # fmt: skip

    def __init__(self, id_: str, prompt_tokens: int, output_tokens: int, *, is_long: bool = False) -> None:
        self.id = id_
        self.prompt_tokens = self.left = max(1, prompt_tokens)
        self.output_tokens = max(1, output_tokens)
        self.kv_tokens = self.prompt_tokens + self.output_tokens
        """What it reserves."""
        self.is_long = is_long
        """Its prompt gives way while one that is not long is in the engine."""
        self.state = _WAITING
        self.arrival = self.first_iteration = 0
        self.engine_s = 0.0
        """Its share of engine time by tokens, complete once it finished; shares sum up to the busy time."""

    @property
    def is_over(self) -> bool:
        """Whether it finished or was aborted."""
        return self.state is _OVER


class Event(msgspec.Struct, frozen=True):
    """Something that happened at a planned time."""

    at_s: float
    mark: Mark
    sequence: Sequence


class IterationModel:
    """Sequences in one engine.  Invariant: every call carries a time, and times never fall.

    Decodes go first, then prompts that are half done, then waiting prompts by rank and arrival, while a sequence and
    KV for the whole of prompt and answer are free.  While a short one is in the engine, all long prompts together get
    at most `long_prefill_tokens` of an iteration; None is no limit.
    """

    def __init__(
        self, hardware: Hardware, max_sequences: int = 64, chunk_tokens: int = 2048,
        long_prefill_tokens: int | None = None,
    ) -> None:  # fmt: skip
        if not 0 < max_sequences < chunk_tokens:
            raise ValueError(f"needs 0 < max_sequences ({max_sequences}) < chunk_tokens ({chunk_tokens})")
        self.hardware, self.max_sequences, self.chunk_tokens = hardware, max_sequences, chunk_tokens
        self.long_prefill_tokens = chunk_tokens if long_prefill_tokens is None else long_prefill_tokens
        self.running = self.waiting = self.reserved_kv_tokens = 0
        self.busy_s = 0.0
        self._starts_s = 0.0  # of the iteration in progress
        self._ends_s: float | None = None  # None while idle
        self._next_s: float | None = None  # of the last of the steady iterations
        self._tokens = 0
        self._chunks: list[tuple[Sequence, int]] = []
        self._is_steady = False  # the iteration in progress repeats itself until a sequence or its prompt ends
        # While it is steady: how often it runs, how long the first time, and by how much more each time after it.
        self._repeats, self._first_s, self._growth_s = 1, 0.0, 0.0
        self._shorts = 0
        self._iteration = self._decoding = self._resident = self._arrivals = 0
        self._last_share_s = self._share_s = 0.0  # engine time per token: of one iteration, summed over all
        self._queue: list[tuple[int, int, Sequence]] = []
        self._half_done: list[Sequence] = []
        self._finishing: list[tuple[int, int, Sequence]] = []

    @property
    def boundary_s(self) -> float | None:
        """When the iteration in progress ends; None while idle."""
        return self._ends_s

    def next_event_s(self) -> float | None:
        """A time no later than the next event if nothing is added; None while idle."""
        return self._next_s

    def tokens_made(self, sequence: Sequence) -> int:
        """Output tokens of a sequence so far."""
        if sequence.state is _OVER:
            return sequence.output_tokens
        return 1 + self._iteration - sequence.first_iteration if sequence.state is _DECODING else 0

    def add(self, sequence: Sequence, rank: int, now_s: float) -> None:
        """Queue it; call `advance(now_s)` before.  It joins the first iteration that starts from now on."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self.waiting += 1
        self._shorts += not sequence.is_long
        heapq.heappush(self._queue, (rank, sequence.arrival, sequence))
        self._is_steady, self._next_s = False, self._ends_s
        if self._ends_s is None:
            self._plan(max(now_s, self._starts_s))

    def abort(self, sequence: Sequence) -> None:
        """Take it out at once, wherever it is; call `advance` before.  The iteration in progress lasts as planned."""
        if sequence.state is _OVER:
            return
        if sequence.state is _WAITING:
            self.waiting -= 1
            self._shorts -= not sequence.is_long
        else:
            if sequence.state is _DECODING:
                self._decoding -= 1
            elif sequence in self._half_done:
                self._half_done.remove(sequence)
            self._release(sequence)
        sequence.state = _OVER
        self._is_steady, self._next_s = False, self._ends_s

    def advance(self, until_s: float) -> list[Event]:
        """Run every iteration that ends by then and return what happened, in order."""
        events: list[Event] = []
        while self._ends_s is not None and self._ends_s <= until_s:
            iterations = self._steady_until(until_s) if self._is_steady else 1
            self._complete(iterations)
            if self._chunks:
                self._finish_chunks(iterations, events)
            if self._finishing and self._finishing[0][0] <= self._iteration:
                self._finish_decodes(events)
            self._plan(self._starts_s)
        return events

    def _plan(self, now_s: float) -> None:
        tokens = self._decoding
        self._starts_s, self._chunks = now_s, []
        if self._half_done or self._queue:
            tokens = self.chunk_tokens - self._plan_chunks(self.chunk_tokens - tokens)
        chunks, h, self._tokens = self._chunks, self.hardware, tokens
        if not tokens:
            self._ends_s = self._next_s = None
            return
        tokens_s = h.per_token_s * (tokens - FREE_TOKENS) if tokens > FREE_TOKENS else 0.0
        self._first_s = h.base_s + tokens_s + h.per_kv_token_s * self._resident
        self._ends_s = self._next_s = now_s + self._first_s
        self._is_steady = not chunks or (len(chunks) == 1 and chunks[0][1] < chunks[0][0].left)
        if self._is_steady:
            self._repeats = self._count_repeats()
            self._growth_s = h.per_kv_token_s * (self._decoding + (chunks[0][1] if chunks else 0))
            self._next_s = now_s + self._steady_s(self._repeats)

    def _plan_chunks(self, budget: int) -> int:
        """Fill the iteration with prompts; what is left of the budget."""
        long_budget = self.long_prefill_tokens if self._shorts else budget
        waiting, self._half_done = self._half_done, []
        while budget > 0 and (waiting or self._queue):
            sequence = waiting.pop(0) if waiting else self._admit(takes_long=long_budget > 0)
            if sequence is None:
                break
            tokens = min(budget, sequence.left)
            if sequence.is_long:
                tokens = min(tokens, long_budget)
                long_budget -= tokens
            budget -= tokens
            if tokens:
                self._chunks.append((sequence, tokens))
            if tokens < sequence.left:
                self._half_done.append(sequence)
        self._half_done += waiting
        return budget

    def _admit(self, *, takes_long: bool) -> Sequence | None:
        queue = self._queue
        while queue and queue[0][2].state is _OVER:
            heapq.heappop(queue)
        if not queue or self.running >= self.max_sequences:
            return None
        sequence = queue[0][2]
        has_kv = self.reserved_kv_tokens + sequence.kv_tokens <= self.hardware.kv_tokens
        if not has_kv or (sequence.is_long and not takes_long):
            return None
        heapq.heappop(queue)
        sequence.state = _PREFILLING
        self.waiting -= 1
        self.running += 1
        self.reserved_kv_tokens += sequence.kv_tokens
        return sequence

    def _count_repeats(self) -> int:
        finishing = self._finishing
        while finishing and finishing[0][2].state is _OVER:
            heapq.heappop(finishing)
        most = finishing[0][0] - self._iteration if finishing else 0
        if self._chunks:
            sequence, tokens = self._chunks[0]
            fits = max(1, (sequence.left - 1) // tokens)  # the last of a prompt may be a smaller chunk
            most = min(most, fits) if most else fits
        return most or 1

    def _steady_s(self, iterations: int) -> float:
        return iterations * (self._first_s + self._growth_s * (iterations - 1) / 2)

    def _steady_until(self, until_s: float) -> int:
        """How many of the steady iterations end by then."""
        iterations, room_s = self._repeats, until_s - self._starts_s
        if iterations == 1 or self._steady_s(iterations) <= room_s:
            return iterations
        half_growth_s = self._growth_s / 2
        linear_s = self._first_s - half_growth_s
        root_s = math.sqrt(linear_s * linear_s + 4 * half_growth_s * room_s)
        # 2c / (b + root) instead of (root - b) / 2a, which cancels for a small growth.
        return max(1, min(iterations - 1, int(2 * room_s / (linear_s + root_s))))

    def _complete(self, iterations: int) -> None:
        # The planned end of one iteration: a prompt taken out meanwhile does not shorten it.
        duration_s = self._steady_s(iterations) if self._is_steady else (self._ends_s or 0.0) - self._starts_s
        self._starts_s, self.busy_s = self._starts_s + duration_s, self.busy_s + duration_s
        self._iteration += iterations
        self._resident += iterations * self._decoding
        self._last_share_s = duration_s / self._tokens
        self._share_s += self._last_share_s

    def _finish_chunks(self, iterations: int, events: list[Event]) -> None:
        for sequence, planned in self._chunks:
            if sequence.state is _OVER:
                continue
            tokens = planned * iterations
            sequence.left -= tokens
            sequence.engine_s += planned * self._last_share_s
            self._resident += tokens
            if sequence.left:
                continue
            sequence.state, sequence.first_iteration = _DECODING, self._iteration
            sequence.engine_s -= self._share_s
            self._decoding += 1
            heapq.heappush(self._finishing, (self._iteration + sequence.output_tokens - 1, sequence.arrival, sequence))
            events.append(Event(self._starts_s, Mark.FIRST_TOKEN, sequence))

    def _finish_decodes(self, events: list[Event]) -> None:
        finishing = self._finishing
        while finishing and finishing[0][0] <= self._iteration:
            sequence = heapq.heappop(finishing)[2]
            if sequence.state is _OVER:
                continue
            self._decoding -= 1
            self._release(sequence)
            sequence.state = _OVER
            sequence.engine_s += self._share_s
            events.append(Event(self._starts_s, Mark.FINISHED, sequence))

    def _release(self, sequence: Sequence) -> None:
        held = sequence.prompt_tokens - sequence.left
        if sequence.state is _DECODING:
            held += self._iteration - sequence.first_iteration
        self._resident -= held
        self.running -= 1
        self._shorts -= not sequence.is_long
        self.reserved_kv_tokens -= sequence.kv_tokens
