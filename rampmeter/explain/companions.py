"""Who was in the same engine at the same time.  Pure."""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from rampmeter.explain.events import Companion


@dataclass(frozen=True, slots=True)
class Run:
    """An attempt in the engine of a consumer."""

    id: str
    consumer: str
    began_s: float
    ended_s: float


class Engines:
    """All runs by consumer.  Invariant: memory grows with attempts only."""

    def __init__(self) -> None:
        self._runs: defaultdict[str, set[Run]] = defaultdict(set)
        self._ordered: dict[str, tuple[list[Run], list[float], float]] = {}

    def note(self, run: Run) -> None:
        """Take in a run; one that was told before counts once."""
        self._runs[run.consumer].add(run)
        self._ordered.pop(run.consumer, None)

    def beside(self, run: Run) -> list[Companion]:
        """Who shared the engine with this run, those that did so for longest first."""
        runs, begins, longest_s = self._in_order(run.consumer)
        found: defaultdict[str, float] = defaultdict(float)
        for number in range(bisect_left(begins, run.ended_s) - 1, -1, -1):
            other = runs[number]
            if other.began_s < run.began_s - longest_s:
                break
            together_s = min(run.ended_s, other.ended_s) - max(run.began_s, other.began_s)
            if together_s > 0 and other.id != run.id:
                found[other.id] += together_s
        companions = [Companion(name, run.consumer, round(together_s, 6)) for name, together_s in found.items()]
        return sorted(companions, key=lambda one: (-one.together_s, one.id))

    def _in_order(self, consumer: str) -> tuple[list[Run], list[float], float]:
        known = self._ordered.get(consumer)
        if known is None:
            runs = sorted(self._runs[consumer], key=lambda run: (run.began_s, run.id))
            longest_s = max((run.ended_s - run.began_s for run in runs), default=0.0)
            known = self._ordered[consumer] = (runs, [run.began_s for run in runs], longest_s)
        return known
