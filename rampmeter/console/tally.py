"""What decisions tell: cost asked for and used by tenant in the last minute, and the autoscaler's.  Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from rampmeter import spending
from rampmeter.scale_log import WORDS
from rampmeter.spending import Spend
from topics import codec
from topics.records import Decision

WINDOW_S = 60.0
_STEP_S = 5.0
MAX_TENANTS = 2000
"""Names that are told apart in one step; beyond it they count among the others."""
OTHER = "(other)"
_SHOWN = (
    "lag_records", "oldest_age_s", "waiting_units", "held_units", "running_units", "arrival_units_per_s",
    "forecast_units_per_s", "replica_units_per_s", "ready", "problem",
)  # fmt: skip
_MEANINGS = {reason.value: words for reason, words in WORDS.items()}


class Scaling(msgspec.Struct, frozen=True):
    """One decision of the autoscaler."""

    at_s: float
    pool: str
    verdict: str
    reason: str
    words: str
    """What the reason means."""
    before: int | None
    after: int | None
    inputs: dict[str, float | int | str | bool | None]


class Told(msgspec.Struct, frozen=True):
    """All that the decision log says at one moment."""

    tenants: dict[str, Spend]
    scaling: tuple[Scaling, ...]
    """The newest first."""


@dataclass(slots=True)
class Tally:
    """Written by one thread.  Invariant: at most `WINDOW_S / _STEP_S + 1` steps of at most `MAX_TENANTS + 1` names."""

    kept_decisions: int
    _steps: dict[int, dict[str, Spend]] = field(default_factory=dict)
    _scaling: deque[Scaling] = field(default_factory=deque)

    def take(self, value: bytes, now_s: float) -> None:
        """Take a record in; one that none of ours can have written, and a shadow's, say nothing."""
        entry = spending.read(value)
        if entry is None:
            return
        if entry.stage == "scale":
            try:
                self._scaling.append(scaling_of(codec.decode_decision(value)))
            except codec.UNREADABLE:
                return
        while len(self._scaling) > self.kept_decisions:
            self._scaling.popleft()
        tenant, spend = entry.inputs.tenant, spending.of(entry)
        if tenant is not None and spend is not None and now_s - WINDOW_S < entry.at_s:
            names = self._steps.setdefault(int(min(entry.at_s, now_s) // _STEP_S), {})
            name = tenant if tenant in names or len(names) < MAX_TENANTS else OTHER
            names.setdefault(name, Spend()).add(spend)

    def told(self, now_s: float) -> Told:
        """Sums of the window, and the last decisions."""
        first = (now_s - WINDOW_S) // _STEP_S
        self._steps = {number: names for number, names in self._steps.items() if number > first}
        sums: dict[str, Spend] = {}
        for names in self._steps.values():
            for name, spend in names.items():
                sums.setdefault(name, Spend()).add(spend)
        return Told(sums, tuple(sorted(self._scaling, key=lambda one: -one.at_s)))


def scaling_of(decision: Decision) -> Scaling:
    """What the page says of a decision about replicas."""
    inputs = decision.inputs
    before, after = inputs.get("replicas_before"), inputs.get("replicas")
    return Scaling(
        decision.at_s,
        decision.id,
        decision.verdict,
        decision.reason,
        _MEANINGS.get(decision.reason, "a reason of another version"),
        before if isinstance(before, int) else None,
        after if isinstance(after, int) else None,
        {name: inputs[name] for name in _SHOWN if inputs.get(name) is not None},
    )


def largest(tenants: Mapping[str, Spend], count: int) -> list[str]:
    """The names of those that asked for or used most."""
    named = [name for name in tenants if name != OTHER]
    return sorted(named, key=lambda name: (-tenants[name].asked_units - tenants[name].used_units, name))[:count]
