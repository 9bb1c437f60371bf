"""Arithmetic of a run's result: percentiles by class, losses, duplicates.  Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from topics.outcomes import Outcome
from topics.records import Length
from topics.timing import Waits

Spread = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request.  Times in Unix seconds; what was not reached is None."""

    outcome: Outcome
    length: Length | None
    """The class that admission assigned, never one found out afterwards."""
    received_s: float
    first_token_s: float | None = None
    retry_after_s: float | None = None
    tenant: str | None = None
    waits: Waits | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """One run as seen from outside."""

    intended_s: Mapping[str, float]
    """When each id was meant to be sent: waits count from here, also when sending itself was late."""
    answers: Mapping[str, Answer]
    """The first terminal reply of each id."""
    duplicates: int
    replicas: tuple[int, int] | None = None
    """Fewest and most consumers at work; None when never seen."""
    late_s: float = 0.0
    """How late the latest request was sent."""

    @property
    def lost(self) -> int:
        """Requests without a terminal reply."""
        return sum(1 for request_id in self.intended_s if request_id not in self.answers)


class Summary(msgspec.Struct, frozen=True):
    """The result record: times in seconds from the intended moment of sending, completed requests only."""

    sent: int
    replied: int
    lost: int
    duplicates: int
    outcomes: dict[str, int]
    ttft_s: dict[str, Spread]
    e2e_s: dict[str, Spread]
    replicas: dict[str, int | None]

    def is_clean(self) -> bool:
        """Tell whether nothing was lost or answered twice."""
        return self.lost == 0 and self.duplicates == 0


def quantile(values: Sequence[float], share: float) -> float | None:
    """Nearest rank; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def summary(run: Observed, speed: float = 1.0) -> Summary:
    """The result record.  Times are multiplied by `speed`: simulated seconds."""
    completed = [
        (run.intended_s[request_id], answer)
        for request_id, answer in run.answers.items()
        if answer.outcome is Outcome.COMPLETED and request_id in run.intended_s
    ]
    ttft = [(a.length, (a.first_token_s - at_s) * speed) for at_s, a in completed if a.first_token_s is not None]
    e2e = [(a.length, (a.received_s - at_s) * speed) for at_s, a in completed]
    low, high = run.replicas or (None, None)
    return Summary(
        sent=len(run.intended_s),
        replied=len(run.answers),
        lost=run.lost,
        duplicates=run.duplicates,
        outcomes=dict(sorted(Counter(str(a.outcome) for a in run.answers.values()).items())),
        ttft_s=_by_length(ttft),
        e2e_s=_by_length(e2e),
        replicas={"min": low, "max": high},
    )


def _by_length(values: Iterable[tuple[Length | None, float]]) -> dict[str, Spread]:
    found: dict[str, list[float]] = {str(length): [] for length in Length}
    for length, value in values:
        if length is not None:
            found[str(length)].append(value)
    return {length: spread(of_length) for length, of_length in found.items()}


def spread(values: Iterable[float | None]) -> Spread:
    """Median and 99th percentile of those that are known."""
    known = [value for value in values if value is not None]
    return {"p50": rounded(quantile(known, 0.5)), "p99": rounded(quantile(known, 0.99))}


def ratio(simulated: float | None, truth: float | None) -> float | None:
    """How far a simulated figure is from the true one, over the true one; None where there is nothing to compare."""
    return None if simulated is None or truth is None or truth <= 0 else round(simulated / truth - 1, 4)


def shown(value: float | None) -> str:
    """A figure as people read it."""
    return "-" if value is None else f"{value:g}"


def rounded(value: float | None) -> float | None:
    """To a tenth of a millisecond."""
    return None if value is None else round(value, 4)
