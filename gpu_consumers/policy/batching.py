"""Batching for an engine with continuous batches: refill it job by job, never wait for a whole batch.  Pure."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from topics.records import Work
from topics.settings import Model


class Verdict(StrEnum):
    """Whether the next job may enter, else the limit that holds it back."""

    ENTER = "enter"
    SEQUENCES = "sequences"
    KV_TOKENS = "kv_tokens"
    PREFILL_TOKENS = "prefill_tokens"
    COST_UNITS = "cost_units"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one engine may hold; None is no limit."""

    sequences: int = 64
    """Too small: the engine is never full.  Too large: order is decided inside the engine, not here."""
    kv_tokens: int | None = None
    prefill_tokens: int | None = 4096
    """Prompt tokens in the engine whose job has no first token yet; about two prefill chunks.
    Too small: the engine runs short chunks.  Too large: urgent work queues behind prompts already handed over."""
    cost_units: float | None = None


class Ask(msgspec.Struct, frozen=True):
    """A job at the head of its lane."""

    prompt_tokens: int
    expected_output_tokens: int
    cost_units: float
    prompt_units: float = 0.0
    """The prompt's part of `cost_units`."""

    @property
    def kv_tokens(self) -> int:
        """Memory that it will hold at its end."""
        return self.prompt_tokens + self.expected_output_tokens


class InFlight(msgspec.Struct, frozen=True):
    """Sums over jobs, in the engine or before it; `prefill_tokens` is the prompts of those without a first token."""

    sequences: int = 0
    kv_tokens: int = 0
    prefill_tokens: int = 0
    cost_units: float = 0.0

    def __add__(self, other: "InFlight") -> "InFlight":
        return InFlight(
            self.sequences + other.sequences,
            self.kv_tokens + other.kv_tokens,
            self.prefill_tokens + other.prefill_tokens,
            self.cost_units + other.cost_units,
        )

    def entered(self, ask: Ask) -> "InFlight":
        """After the job was handed over."""
        return InFlight(
            self.sequences + 1,
            self.kv_tokens + ask.prompt_tokens + ask.expected_output_tokens,
            self.prefill_tokens + ask.prompt_tokens,
            self.cost_units + ask.cost_units,
        )

    def prefilled(self, ask: Ask) -> "InFlight":
        """After its first token."""
        return InFlight(self.sequences, self.kv_tokens, self.prefill_tokens - ask.prompt_tokens, self.cost_units)

    def left(self, ask: Ask, *, had_first_token: bool) -> "InFlight":
        """After it ended, however it ended."""
        return InFlight(
            self.sequences - 1,
            self.kv_tokens - ask.prompt_tokens - ask.expected_output_tokens,
            self.prefill_tokens - (0 if had_first_token else ask.prompt_tokens),
            self.cost_units - ask.cost_units if self.sequences > 1 else 0.0,
        )


def ask_of(work: Work, model: Model | None) -> Ask:
    """What this work asks of an engine; the prompt's part of the cost is unknown for a model without a price."""
    prompt, output = work.request.prompt_tokens, work.price.expected_output_tokens
    prompt_ratio = 0.0 if model is None else model.units(prompt, 0) / (model.units(prompt, output) or 1.0)
    return Ask(prompt, output, work.price.cost_units, work.price.cost_units * prompt_ratio)


def judge(ask: Ask, held: InFlight, limits: Limits) -> Verdict:
    """May this job enter now?  An empty engine takes any job, and one without open prefill takes any prompt that fits.

    On any other verdict than ENTER the caller waits with this job and tries no other: a large job that is passed over
    whenever a small one fits would wait for ever.
    """
    if held.sequences >= limits.sequences:
        return Verdict.SEQUENCES
    if held.sequences == 0:
        return Verdict.ENTER
    kv_tokens, cost_units, prefill_tokens = limits.kv_tokens, limits.cost_units, limits.prefill_tokens
    if kv_tokens is not None and held.kv_tokens + ask.kv_tokens > kv_tokens:
        return Verdict.KV_TOKENS
    if cost_units is not None and held.cost_units + ask.cost_units > cost_units:
        return Verdict.COST_UNITS
    open_tokens = held.prefill_tokens
    if prefill_tokens is not None and open_tokens > 0 and open_tokens + ask.prompt_tokens > prefill_tokens:
        return Verdict.PREFILL_TOKENS
    return Verdict.ENTER


def share(held: InFlight, limits: Limits) -> float:
    """Part of the engine that these jobs take, in what they take most of: sequences, KV tokens or cost.

    Above 1 for more than it holds; prefill passes within moments and does not count.
    """
    most = held.sequences / limits.sequences
    if limits.kv_tokens and (ratio := held.kv_tokens / limits.kv_tokens) > most:
        most = ratio
    if limits.cost_units and (ratio := held.cost_units / limits.cost_units) > most:
        most = ratio
    return most
