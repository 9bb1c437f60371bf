"""A model's coefficient from measured engine time.  Pure.

The engine's milliseconds are fitted to the weighted tokens by a line through the origin with the least absolute error:
its slope is the median of milliseconds per weighted token, weighted by the weighted tokens.
"""

from dataclasses import dataclass, field

from streams.policy.histogram import EDGE_RATIO, Histogram
from topics.records import Usage
from topics.settings import Model


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that decide."""

    min_samples: int
    step_ratio: float
    range_ratio: float
    min_shared: float


@dataclass(slots=True)
class Sketch:
    """The samples of one model in one window.  One writer."""

    since_s: float
    samples: int = 0
    slopes: Histogram = field(default_factory=Histogram)

    def add(self, usage: Usage, model: Model, rules: Rules) -> None:
        """Count a measurement.

        An attempt that had the engine to itself took time that nobody else wanted: only attempts that shared it with
        many, by their service time over their share of engine time, say what the tokens cost.
        """
        engine_s, service_s = usage.engine_s, usage.service_s
        if not engine_s or service_s is None or service_s < rules.min_shared * engine_s:
            return
        weighted = model.units(usage.tokens.prompt, usage.tokens.output, cached=usage.tokens.cached, coefficient=1.0)
        if weighted > 0:
            self.samples += 1
            self.slopes.add(engine_s * 1000 / weighted, weighted)


def bounded(coefficient: float, configured: float, range_ratio: float) -> float:
    """The coefficient, at most this many times above or below the configured one."""
    return max(configured / range_ratio, min(configured * range_ratio, coefficient))


def next_coefficient(sketch: Sketch, current: float, configured: float, rules: Rules) -> float | None:
    """The coefficient after one bounded step towards what was measured.

    None when too little was, or when what was measured lies in the histogram's bucket of the current one.
    """
    measured = sketch.slopes.centre(0.5)
    if sketch.samples < rules.min_samples or measured is None:
        return None
    target = bounded(measured, configured, rules.range_ratio)
    if current / EDGE_RATIO <= target <= current * EDGE_RATIO:
        return None
    stepped = max(current * (1 - rules.step_ratio), min(current * (1 + rules.step_ratio), target))
    return bounded(stepped, configured, rules.range_ratio)
