"""What the charts show: waits by class and queues by tier, in steps of some seconds.  Pure."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from streams.policy.histogram import Histogram

STEP_S = 5.0
"""Too small: each step knows few requests.  Too large: a spike is flattened."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
T = TypeVar("T")


class WaitPoint(msgspec.Struct, frozen=True):
    """Of the attempts that ended in one step.  A class of which none did is absent: its wait is unknown."""

    at_s: float
    """The beginning of the step."""
    changed_s: float
    waits_s: dict[str, dict[str, float]]
    """By class, quantiles of the time from arrival to engine; 1 to 1.09 times too long."""
    ended: dict[str, int]


class QueuePoint(msgspec.Struct, frozen=True):
    """Unfinished records by tier, as last looked at in one step."""

    at_s: float
    changed_s: float
    queued: dict[str, int]


@dataclass(slots=True)
class _Steps(Generic[T]):
    """What is known of each step within `span_s`.  Invariant: at most `span_s / STEP_S + 2` of them."""

    span_s: float
    make: Callable[[], T]
    by_number: dict[int, T] = field(default_factory=dict)

    def of(self, at_s: float, now_s: float) -> tuple[int, T] | None:
        """The step of a moment; None before the span.  Clocks may differ, so no moment is later than now."""
        if at_s <= now_s - self.span_s:
            return None
        number = int(min(at_s, now_s) // STEP_S)
        if number not in self.by_number:
            first = (now_s - self.span_s) // STEP_S
            self.by_number = {n: step for n, step in self.by_number.items() if n >= first}
        return number, self.by_number.setdefault(number, self.make())


class Waits:
    """How long attempts waited, by class.  For one thread."""

    def __init__(self, span_s: float, classes: Collection[str]) -> None:
        self._classes = frozenset(classes)
        self._steps: _Steps[dict[str, Histogram]] = _Steps(span_s, dict)
        self._points: dict[int, WaitPoint] = {}
        self._changed: set[int] = set()

    def add(self, name: str, waited_s: float, ended_s: float, now_s: float) -> None:
        """Count an attempt; what is older than the span, or of no known class, says nothing."""
        found = self._steps.of(ended_s, now_s) if name in self._classes else None
        if found is not None:
            number, waits = found
            waits.setdefault(name, Histogram()).add(waited_s)
            self._changed.add(number)

    def points(self, now_s: float) -> tuple[WaitPoint, ...]:
        """All steps in their order."""
        steps = self._steps.by_number
        self._points = {number: point for number, point in self._points.items() if number in steps}
        for number in self._changed & steps.keys():
            self._points[number] = _of_waits(number, steps[number], now_s)
        self._changed.clear()
        return tuple(point for _, point in sorted(self._points.items()))


class Queues:
    """What waited at each look.  For one thread."""

    def __init__(self, span_s: float) -> None:
        self._steps: _Steps[list[QueuePoint]] = _Steps(span_s, list)

    def note(self, records: Mapping[str, int], now_s: float) -> tuple[QueuePoint, ...]:
        """Take in a look, by tier; all steps in their order."""
        found = self._steps.of(now_s, now_s)
        if found is not None:
            number, kept = found
            kept[:] = [QueuePoint(number * STEP_S, now_s, dict(records))]
        return tuple(kept[0] for _, kept in sorted(self._steps.by_number.items()))


def _of_waits(number: int, waits: Mapping[str, Histogram], now_s: float) -> WaitPoint:
    return WaitPoint(
        number * STEP_S,
        now_s,
        {name: _quantiles(histogram) for name, histogram in sorted(waits.items())},
        {name: round(histogram.total) for name, histogram in sorted(waits.items())},
    )


def _quantiles(waits: Histogram) -> dict[str, float]:
    found = {name: waits.quantile(ratio) for name, ratio in QUANTILES.items()}
    return {name: round(value, 4) for name, value in found.items() if value is not None}
