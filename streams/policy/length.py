"""Short or long: by what the request declares, and by its predicted cost among its pool's recent requests."""

import math
from dataclasses import dataclass, field

from topics.records import Length

_BUCKETS_PER_DOUBLING = 4
_BUCKETS = 160
_MIN_UNITS = 0.01
_ENOUGH = 200
_DECAY_EVERY = 5000


@dataclass(slots=True)
class RecentCosts:
    """Log-bucket histogram of predicted costs that forgets by halving.

    One writer.  Bucket edges grow by 2**(1/4), so a quantile is within 19 % of the true one.
    """

    counts: list[float] = field(default_factory=lambda: [0.0] * _BUCKETS)
    total: float = 0.0
    since_decay: int = 0

    def add(self, cost_units: float) -> None:
        """Count one request."""
        self.counts[_bucket(cost_units)] += 1
        self.total += 1
        self.since_decay += 1
        if self.since_decay >= _DECAY_EVERY:
            self.counts = [count / 2 for count in self.counts]
            self.total /= 2
            self.since_decay = 0

    def quantile_units(self, quantile: float) -> float | None:
        """Upper edge of the bucket with the quantile; None until enough requests were seen."""
        if self.total < _ENOUGH:
            return None
        rest = quantile * self.total
        for index, count in enumerate(self.counts):
            rest -= count
            if rest <= 0:
                return float(_MIN_UNITS * 2 ** ((index + 1) / _BUCKETS_PER_DOUBLING))
        return None


def _bucket(cost_units: float) -> int:
    position = math.log2(max(cost_units, _MIN_UNITS) / _MIN_UNITS) * _BUCKETS_PER_DOUBLING
    return min(_BUCKETS - 1, int(position))


def classify(max_tokens: int | None, cost_units: float, *, long_max_tokens: int, threshold_units: float) -> Length:
    """Long when more output is declared than `long_max_tokens`, or when the predicted cost is above the threshold.

    A long prompt blocks an engine as much as a long answer, so the declaration alone never makes a request short.
    """
    if max_tokens is not None and max_tokens > long_max_tokens:
        return Length.LONG
    return Length.LONG if cost_units > threshold_units else Length.SHORT
