"""What a decision about replicas was based on, as flat fields for the decision log, and back again.  Pure.

What is unknown is None here and stays off the wire.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any

from autoscaler.policy.demand import Load
from autoscaler.policy.replicas import Decision, Limits, Memory, Want

Field = float | int | str | bool | None

POLICY_VERSION = "4"


def of(load: Load | None, current: int, memory: Memory, limits: Limits, now_s: float) -> dict[str, Field]:
    """All that `replicas.decide` looked at; `given` reads it back."""
    return {
        "replicas_before": current,
        **({} if load is None else {**_flat(load), "waiting_units": load.waiting_units}),
        **_flat(limits),
        "wants": " ".join(f"{want.at_s!r}:{want.to_grow}:{want.to_shrink}" for want in _told(memory.wants)),
        "changed_s": memory.changed_s,
        "moved_s": memory.moved_s,
        "now_s": now_s,
    }


def given(inputs: Mapping[str, Any]) -> tuple[Load | None, int, Memory, Limits, float]:
    """The arguments of `replicas.decide` behind logged inputs; raises KeyError when some are missing."""
    load = None
    if "lag_records" in inputs:
        named = {
            f.name: inputs[f.name] if f.default is MISSING else inputs.get(f.name, f.default) for f in fields(Load)
        }
        load = Load(**{**named, "waits": tuple(_numbers(text) for text in inputs["waits"].split())})
    wants = [text.split(":") for text in inputs["wants"].split()]
    memory = Memory(
        tuple(Want(float(at_s), int(grow), int(shrink)) for at_s, grow, shrink in wants),
        inputs.get("changed_s"),
        inputs.get("moved_s"),
    )
    limits = Limits(**{f.name: inputs[f.name] for f in fields(Limits)} | {"drain_s": _numbers(inputs["drain_s"])})
    return load, inputs["replicas_before"], memory, limits, inputs["now_s"]


def of_made(made: Decision) -> dict[str, Field]:
    """What was decided, beside its reason."""
    needed = made.demand
    return {
        "replicas": made.replicas,
        "ideal_replicas": None if needed is None else round(needed.soon, 3),
        "present_replicas": None if needed is None else round(needed.now, 3),
        "hot_partitions": None if needed is None else needed.hot_partitions,
    }


def verdict(made: Decision, current: int) -> str:
    """The decision in a word."""
    return "hold" if made.replicas == current else "up" if made.replicas > current else "down"


def _flat(given: Load | Limits) -> dict[str, Field]:
    """Numbers of a row are told as `1.5/0/3`, rows with a space between them."""
    told = asdict(given)
    if isinstance(given, Load):
        told["waits"] = " ".join(_row(by_tier) for by_tier in given.waits)
    else:
        told["drain_s"] = _row(given.drain_s)
    return told


def _row(numbers: Sequence[float]) -> str:
    return "/".join(repr(number) if number else "0" for number in numbers)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split("/"))


def _told(wants: Sequence[Want]) -> list[Want]:
    """The first, and the last of each run of equal ones: the least and the most of any window follow from them."""
    asked = [(want.to_grow, want.to_shrink) for want in wants]
    last = [want for n, want in enumerate(wants) if n == len(wants) - 1 or asked[n] != asked[n + 1]]
    return last if last[:1] == list(wants[:1]) else [wants[0], *last]
