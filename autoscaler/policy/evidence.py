"""What a decision about replicas was based on, as flat fields for the decision log, and back again.  Pure.

What is unknown is None here and stays off the wire.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from autoscaler.policy.replicas import Decision, Limits, Load, Memory, Want

Field = float | int | str | bool | None

POLICY_VERSION = "1"


def of(load: Load | None, current: int, memory: Memory, limits: Limits, now_s: float) -> dict[str, Field]:
    """All that `replicas.decide` looked at; `given` reads it back."""
    return {
        "replicas_before": current,
        **({} if load is None else asdict(load)),
        **asdict(limits),
        "wants": " ".join(f"{want.at_s!r}:{want.to_grow}:{want.to_shrink}" for want in _told(memory.wants)),
        "changed_s": memory.changed_s,
        "now_s": now_s,
    }


def given(inputs: Mapping[str, Any]) -> tuple[Load | None, int, Memory, Limits, float]:
    """The arguments of `replicas.decide` behind logged inputs; raises KeyError when some are missing."""
    load = Load(**{f.name: inputs[f.name] for f in fields(Load)}) if "lag_records" in inputs else None
    wants = [text.split(":") for text in inputs["wants"].split()]
    memory = Memory(
        tuple(Want(float(at_s), int(grow), int(shrink)) for at_s, grow, shrink in wants), inputs.get("changed_s")
    )
    limits = Limits(**{f.name: inputs[f.name] for f in fields(Limits)})
    return load, inputs["replicas_before"], memory, limits, inputs["now_s"]


def of_made(made: Decision) -> dict[str, Field]:
    """What was decided, beside its reason."""
    ideal = made.ideal_replicas
    return {"replicas": made.replicas, "ideal_replicas": None if ideal is None else round(ideal, 3)}


def verdict(made: Decision, current: int) -> str:
    """The decision in a word."""
    return "hold" if made.replicas == current else "up" if made.replicas > current else "down"


def _told(wants: Sequence[Want]) -> list[Want]:
    """The first, and the last of each run of equal ones: the least and the most of any window follow from them."""
    asked = [(want.to_grow, want.to_shrink) for want in wants]
    last = [want for n, want in enumerate(wants) if n == len(wants) - 1 or asked[n] != asked[n + 1]]
    return last if last[:1] == list(wants[:1]) else [wants[0], *last]
