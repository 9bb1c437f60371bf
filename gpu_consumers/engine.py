"""What a consumer asks of an engine.  Implementations are in `engines/`; they raise `topics.errors.EngineError`."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from topics.records import Tokens
from topics.trace_context import TraceContext


@dataclass(slots=True, eq=False)
class Progress:
    """What an attempt has made so far: written by the engine, read at any time, also after an abort."""

    output_tokens: int = 0
    """Up to date after each item, after the job has left the engine, and after `load`."""


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt of one request, as an engine sees it."""

    id: str
    model: str
    body: bytes
    """The OpenAI chat body, byte for byte."""
    prompt_tokens: int
    """An estimate."""
    max_tokens: int | None
    rank: int
    """Lower is more urgent; comes from the lane."""
    stream: bool
    progress: Progress = field(default_factory=Progress, compare=False)
    trace: TraceContext | None = None
    """For an engine that tells of its part itself."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Progress; the first one marks the first token."""

    data: bytes
    """An OpenAI chat.completion.chunk, or empty: the first token of a job that does not stream."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole answer; always the last item."""

    body: bytes
    """An OpenAI chat.completion, also for a job that streamed."""
    tokens: Tokens
    engine_s: float | None
    """The job's share of engine time in the engine's own seconds; None when the engine cannot say."""


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine holds now; None is "unknown", never zero."""

    running: int
    waiting: int
    free_kv_tokens: int | None
    total_kv_tokens: int | None
    closed: str | None = None
    """Why it takes no new job now; None while it does."""


class Engine(Protocol):
    """Runs many jobs at once on one event loop."""

    def load(self) -> Load:
        """Read what it holds; never blocks."""

    def run(self, job: Job) -> AsyncIterator[Piece | Finished]:
        """Pieces, then one Finished.  Closing or cancelling the iterator aborts the job in the engine."""

    async def close(self) -> None:
        """Abort what runs and free the engine."""
