"""Short or long: by what a request declares, by what its kind took, and by its predicted cost among the recent ones."""

from dataclasses import dataclass, field
from typing import Literal

from streams.policy.histogram import Histogram
from topics.records import Length

Mode = Literal["declared", "history", "cost", "hybrid"]

_ENOUGH = 200
_FADE_EVERY = 5000
_LOOK_EVERY = 50


@dataclass(slots=True)
class RecentCosts:
    """Predicted costs of a pool's requests; older ones count for less.  One writer."""

    costs: Histogram = field(default_factory=Histogram)
    added: int = 0
    _known_units: float | None = None

    def add(self, cost_units: float) -> None:
        """Count one request."""
        self.costs.add(cost_units)
        self.added += 1
        if self.added % _FADE_EVERY == 0:
            self.costs.fade()
        if self.added % _LOOK_EVERY == 0:
            self._known_units = None

    def quantile_units(self, quantile: float) -> float | None:
        """The quantile, always the same one, within 4.5 % of the true one and as of some requests ago.

        None until enough requests were seen.
        """
        if self.costs.total < _ENOUGH:
            return None
        if self._known_units is None:
            self._known_units = self.costs.centre(quantile)
        return self._known_units


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a request before it runs; None is unknown."""

    declared_tokens: int | None
    """Output of all choices together."""
    cost_units: float
    service_s: float | None
    """What its kind took."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Above any of these a request is long."""

    tokens: int
    cost_units: float
    service_s: float


def classify(mode: Mode, evidence: Evidence, limits: Limits) -> Length:
    """`declared`, `history` (declared while the kind is unknown), `cost`, or all three together: `hybrid`.

    In `hybrid` a small declaration is believed and a large one or none gives way to history; a predicted cost above the
    limit makes any request long, since a long prompt blocks an engine as much as a long answer.
    """
    declared = evidence.declared_tokens is not None and evidence.declared_tokens > limits.tokens
    took_long = declared if evidence.service_s is None else evidence.service_s > limits.service_s
    costly = evidence.cost_units > limits.cost_units
    match mode:
        case "declared":
            is_long = declared
        case "history":
            is_long = took_long
        case "cost":
            is_long = costly
        case "hybrid":
            says_short = evidence.declared_tokens is not None and not declared
            is_long = costly or (took_long and not says_short)
    return Length.LONG if is_long else Length.SHORT
