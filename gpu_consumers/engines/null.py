"""An engine that answers at once: what is measured with it is the path around the engine."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from gpu_consumers.engine import Finished, Job, Load, Piece
from gpu_consumers.engines import completions
from topics.clock import Clock
from topics.records import Tokens

_TEXT = "ok"


@dataclass(frozen=True, slots=True)
class NullOptions:
    """Nothing to choose."""


class NullEngine:
    """Holds nothing and takes no time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def load(self) -> Load:
        """Always empty."""
        return Load(running=0, waiting=0, free_kv_tokens=None, total_kv_tokens=None)

    async def run(self, job: Job) -> AsyncGenerator[Piece | Finished, None]:
        """One piece and the end."""
        created_s = self._clock.wall_s()
        delta = {"role": "assistant", "content": _TEXT}
        yield Piece(completions.chunk(job.id, job.model, created_s, delta, "stop") if job.stream else b"")
        tokens = Tokens(prompt=job.prompt_tokens, output=1)
        if job.stream and completions.wants_usage(job.body):
            yield Piece(completions.usage_chunk(job.id, job.model, created_s, tokens))
        body = completions.whole(job.id, job.model, created_s, _TEXT, "stop", tokens)
        yield Finished(body, tokens, engine_s=0.0)

    async def close(self) -> None:
        """Nothing to free."""
