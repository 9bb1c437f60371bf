"""One engine in virtual time and what it holds."""

from collections.abc import Sequence as Many
from dataclasses import dataclass

from gpu_consumers.engines.iteration_model import PRESETS, Event, Hardware, IterationModel, Mark
from gpu_consumers.policy import batching
from gpu_consumers.policy.batching import Ask, InFlight, Limits
from rampmeter.simulation.jobs import NEVER_S, Fate, Job


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of engine, the same for every policy that is compared."""

    preset: str = "a100-8b"
    window_requests: int = 64
    """Sequences in the engine at once."""
    chunk_tokens: int = 2048
    """Tokens of an iteration."""
    speed: float = 1.0
    """Of its preset."""

    def hardware(self) -> Hardware:
        """Constants of the engine."""
        h = PRESETS[self.preset]
        return Hardware(h.base_s / self.speed, h.per_token_s / self.speed, h.per_kv_token_s / self.speed, h.kv_tokens)


class Station:
    """An engine, its seats and its next moment.  Invariant: the model is advanced to now before it is changed."""

    __slots__ = ("held", "limits", "model", "next_s", "number")

    def __init__(
        self,
        number: int,
        machine: Machine,
        prefill_tokens: int | None = None,
        long_prefill_tokens: int | None = None,
    ) -> None:
        """`prefill_tokens`: most prompt tokens inside whose job has no first token; None for who has no such rule."""
        self.number = number
        hardware = machine.hardware()
        self.model = IterationModel(hardware, machine.window_requests, machine.chunk_tokens, long_prefill_tokens)
        self.limits = Limits(machine.window_requests, hardware.kv_tokens, prefill_tokens)
        self.held = InFlight()
        self.next_s = NEVER_S

    def has_room(self, ask: Ask) -> bool:
        """Whether the job may enter now."""
        return batching.judge(ask, self.held, self.limits) is batching.Verdict.ENTER

    def enter(self, job: Job, rank: int, now_s: float) -> None:
        """Hand a job over.  Whatever ended by now was told by `advance`."""
        job.started_s = now_s
        self.model.advance(now_s)  # equal iterations, which nobody had to be told of
        self.held = self.held.entered(job.ask)
        self.model.add(job, rank, now_s)
        self._look_ahead()

    def advance(self, now_s: float) -> Many[Event]:
        """What has happened by now; whoever ended has left."""
        events = self.model.advance(now_s)
        for event in events:
            job = event.sequence
            assert isinstance(job, Job)  # noqa: S101 - nothing else was added
            if event.mark is Mark.FIRST_TOKEN:
                job.first_token_s = event.at_s
                self.held = self.held.prefilled(job.ask)
            else:
                job.finished_s, job.fate = event.at_s, Fate.COMPLETED
                self.held = self.held.left(job.ask, had_first_token=True)
        self._look_ahead()
        return events

    def _look_ahead(self) -> None:
        next_s = self.model.next_event_s()
        self.next_s = NEVER_S if next_s is None else next_s
