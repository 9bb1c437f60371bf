"""What a load came to, in the log or simulated: outcomes, times by length, waits by class, cost by tenant.  Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rampmeter.results import Spread, spread
from rampmeter.simulation.baselines import Slo
from topics.outcomes import Outcome
from topics.records import Length, Priority


@dataclass(frozen=True, slots=True)
class End:
    """How one request ended.  Times in seconds from its arrival; what it did not reach is None."""

    tenant: str
    priority: Priority
    length: Length
    outcome: Outcome
    wait_s: float | None
    """To its start in an engine."""
    ttft_s: float | None
    e2e_s: float | None
    cost_units: float


class Figures(msgspec.Struct, frozen=True):
    """One run; times of requests that completed, waits of all that began."""

    requests: int
    outcomes: dict[str, int]
    ttft_s: dict[str, Spread]
    e2e_s: dict[str, Spread]
    wait_s: dict[str, Spread]
    """By class."""
    cost_units: dict[str, float]
    """Charged, by tenant."""
    goodput_ratio: float
    """Of all requests, those whose first token came in time."""


def of(ends: Sequence[End], slo: Slo) -> Figures:
    """The figures of all requests of a run."""
    done = [end for end in ends if end.outcome is Outcome.COMPLETED]
    good = sum(end.ttft_s is not None and end.ttft_s <= slo.of(end.length) for end in done)
    cost_units: defaultdict[str, float] = defaultdict(float)
    for end in ends:
        cost_units[end.tenant] += end.cost_units
    return Figures(
        requests=len(ends),
        outcomes=dict(sorted(Counter(end.outcome.value for end in ends).items())),
        ttft_s={n.value: spread(end.ttft_s for end in done if end.length is n) for n in Length},
        e2e_s={n.value: spread(end.e2e_s for end in done if end.length is n) for n in Length},
        wait_s={p.value: spread(end.wait_s for end in ends if end.priority is p) for p in Priority},
        cost_units={tenant: round(units, 3) for tenant, units in sorted(cost_units.items())},
        goodput_ratio=round(good / len(ends), 4) if ends else 0.0,
    )


def flat(found: Figures) -> dict[str, float | None]:
    """All figures by dotted name."""
    return dict(_flat(msgspec.to_builtins(found), ""))


def differences(one: Mapping[str, float | None], other: Mapping[str, float | None]) -> dict[str, float | None]:
    """`other` less `one`, by name; a count that only one of them has is 0 in the other, a time is unknown."""
    return {name: _less(_of(other, name), _of(one, name)) for name in dict.fromkeys([*one, *other])}


def _of(figures: Mapping[str, float | None], name: str) -> float | None:
    return figures.get(name, 0.0 if name.startswith(("outcomes.", "cost_units.")) else None)


def _less(minuend: float | None, subtrahend: float | None) -> float | None:
    return None if minuend is None or subtrahend is None else round(minuend - subtrahend, 4)


def _flat(value: Any, path: str) -> Iterator[tuple[str, float | None]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _flat(part, f"{path}.{name}" if path else name)
    else:
        yield path, value
