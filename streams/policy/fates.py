"""What became of requests where they were served: by it a shadow knows when those that it admitted end.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from streams.policy import settlement
from streams.policy.sharing import Capacity
from topics.bounds import Count, Ordinal, Seconds
from topics.records import Decision, Tokens, Work
from topics.settings import Model


@dataclass(frozen=True, slots=True)
class Refused:
    """It never ran."""


@dataclass(frozen=True, slots=True)
class Used:
    """What an attempt used; after a partial one another follows."""

    tokens: Tokens
    attempt: int = 1
    partial: bool = False
    service_s: float | None = None
    """None while it is unknown, as of what never ran."""

    def units(self, work: Work, models: Mapping[str, Model]) -> float:
        """Its cost at the price of `work`."""
        return settlement.units(self.tokens, models[work.request.model], work.price.coefficient)


Fate = Refused | Used


class _Settlement(msgspec.Struct, frozen=True):
    """What the decision log says of one."""

    prompt_tokens: Count
    output_tokens: Count
    cached_tokens: Count = 0
    attempt: Ordinal = 1
    partial: bool = False
    service_s: Seconds | None = None


def told(decision: Decision) -> Fate | None:
    """What a decision tells of its request's end; None when that is nothing, or a shadow made it.

    Raises msgspec.ValidationError for a settlement that none of ours can have written.
    """
    if decision.shadow is not None:
        return None
    if decision.verdict == "reject" and decision.stage in {"admission", "verification"}:
        return Refused()
    if decision.stage != "settlement" or decision.verdict == "repeat":
        return None
    said = msgspec.convert(decision.inputs, _Settlement)
    tokens = Tokens(prompt=said.prompt_tokens, output=said.output_tokens, cached=said.cached_tokens)
    return Used(tokens, said.attempt, said.partial, said.service_s)


def lasts_s(work: Work, capacity: Capacity) -> float:
    """How long one that was refused would have been open: its predicted wait on the lane and its time in the engine.

    While that time is unknown for its like, it is what a full engine takes to do all that it holds; 0 while that is
    unknown too, since nothing follows then from what is open.
    """
    in_engine_s = work.price.service_s
    if in_engine_s is None and capacity.units_per_s and capacity.units is not None:
        in_engine_s = capacity.units / capacity.units_per_s
    return (work.wait_estimate_s or 0.0) + (in_engine_s or 0.0)
