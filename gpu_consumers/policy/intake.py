"""Whether a consumer takes in work, by the state of its GPU and its engine.  Pure.

A GPU that is too hot throttles, and one without memory fails what it runs: both get better only without new work.  An
engine says itself when it takes nothing.
"""

from dataclasses import dataclass

COOLER_C = 5.0
"""How far below its limit a GPU must be to take in work again.  Too small: it opens and closes in turns."""
FREER_RATIO = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """Where intake ends."""

    temperature_c: float
    memory_used_ratio: float


@dataclass(frozen=True, slots=True)
class State:
    """What was read; None is unknown."""

    temperature_c: float | None = None
    memory_used_ratio: float | None = None
    is_engine_open: bool = True


@dataclass(frozen=True, slots=True)
class Intake:
    """Open, or closed by `temperature`, `memory`, `engine` or several of them."""

    closed_by: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether work is taken in."""
        return not self.closed_by

    def __str__(self) -> str:
        return "open" if self.is_open else "closed by " + " and ".join(sorted(self.closed_by))


def judge(before: Intake, state: State, limits: Limits) -> Intake:
    """What holds after a reading.  One that is absent changes nothing: a GPU is not well because nobody knows."""
    closed = set()
    if _is_over(state.temperature_c, limits.temperature_c, COOLER_C, before, "temperature"):
        closed.add("temperature")
    if _is_over(state.memory_used_ratio, limits.memory_used_ratio, FREER_RATIO, before, "memory"):
        closed.add("memory")
    if not state.is_engine_open:
        closed.add("engine")
    return Intake(frozenset(closed))


def _is_over(value: float | None, limit: float, margin: float, before: Intake, name: str) -> bool:
    if value is None:
        return name in before.closed_by
    return value > (limit - margin if name in before.closed_by else limit)
