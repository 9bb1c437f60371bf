"""One request in virtual time: what admission knew of it, what it is, and when what happened to it."""

from enum import Enum
from typing import Protocol

import msgspec

from gpu_consumers.engines.iteration_model import Sequence
from gpu_consumers.policy.batching import Ask
from topics.outcomes import Outcome
from topics.records import Length, Work

NEVER_S = float("inf")


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A priced request.  All but `output_tokens` follows from what is known on arrival."""

    number: int
    flow: tuple[str, str]
    """Lane and tenant."""
    work: Work
    ask: Ask
    output_tokens: int
    """What it will really generate; only the engine and oracles look at it."""
    last_start_s: float = NEVER_S
    """When it is too late to begin it."""
    real_prompt_tokens: int | None = None
    """What the engine will find; None: as many as were estimated."""
    real_units: float | None = None
    """What is charged in the end; None: what was reserved."""

    @property
    def length(self) -> Length:
        """The class that admission assigned."""
        return self.work.price.length


def flow_of(work: Work) -> tuple[str, str]:
    """The flow that it belongs to."""
    return f"{work.request.priority}.{work.price.length}", work.request.tenant


class Place(Protocol):
    """Where a job waits."""

    def remove(self, job: "Job") -> None:
        """Take it out."""


class Fate(Enum):
    """How a request ended; `OPEN` until it did."""

    OPEN = "open"
    COMPLETED = "completed"
    SHED = "shed"
    """Never begun: its time was over, or admission foresaw that."""


class Job(Sequence):
    """One run of a request.  Times in simulated seconds; those of what never happened stay below zero."""

    __slots__ = (
        "admitted_s", "arrived_s", "ask", "asked", "copies", "fate", "finished_s", "first_token_s", "last_start_s",
        "outcome", "started_s",
    )  # fmt: skip

    def __init__(self, asked: Asked) -> None:
        request = asked.work.request
        prompt_tokens = request.prompt_tokens if asked.real_prompt_tokens is None else asked.real_prompt_tokens
        super().__init__("", prompt_tokens, asked.output_tokens, is_long=asked.length is Length.LONG)
        self.asked, self.ask, self.arrived_s = asked, asked.ask, request.arrived_s
        self.last_start_s = asked.last_start_s
        self.admitted_s = self.started_s = self.first_token_s = self.finished_s = -1.0
        self.fate = Fate.OPEN
        self.outcome = Outcome.EXPIRED
        """How it is answered if it never begins: admission may foresee that."""
        self.copies: tuple[Place, ...] = ()
        """Where it waits, when that is more than one place."""

    def begun_from(self, place: "Place") -> None:
        """Take it out of all other places: its id is claimed."""
        for other in self.copies:
            if other is not place:
                other.remove(self)
        self.copies = ()
