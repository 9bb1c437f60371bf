"""Histograms with logarithmic buckets that merge by adding: what all that is learned is kept in.  Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

_PER_DOUBLING = 8
_FARTHEST = 32 * _PER_DOUBLING
EDGE_RATIO = 2 ** (0.5 / _PER_DOUBLING)
"""Upper edge over centre of a bucket, 1.044; so an upper edge is at most 1.09 times the value it stands for."""


@dataclass(slots=True)
class Histogram:
    """Weights by bucket; bucket i is centred on 2**(i/8).  One writer.

    Values outside 2**-32 to 2**32 are counted in the outermost buckets, so there are at most 513.
    """

    weights: dict[int, float] = field(default_factory=dict)
    total: float = 0.0

    @classmethod
    def of(cls, *rows: Mapping[str, float]) -> "Histogram":
        """The sum of stored rows."""
        made = cls()
        for row in rows:
            for bucket, weight in row.items():
                made._put(int(bucket), weight)
        return made

    def row(self) -> dict[str, float]:
        """What can be stored as JSON."""
        return {str(bucket): weight for bucket, weight in self.weights.items()}

    def add(self, value: float, weight: float = 1) -> None:
        """Count one value."""
        bucket = round(math.log2(value) * _PER_DOUBLING) if value > 0 else -_FARTHEST
        self._put(max(-_FARTHEST, min(_FARTHEST, bucket)), weight)

    def fade(self) -> None:
        """Forget half of what was counted."""
        self.weights = {bucket: weight / 2 for bucket, weight in self.weights.items()}
        self.total /= 2

    def quantile(self, ratio: float) -> float | None:
        """Upper edge of the bucket with the quantile, 1 to 1.09 times the true one; None while empty."""
        centre = self.centre(ratio)
        return None if centre is None else centre * EDGE_RATIO

    def centre(self, ratio: float) -> float | None:
        """Centre of that bucket, within 4.5 % of the true quantile; None while empty."""
        if not self.weights:
            return None
        rest = ratio * self.total
        last = max(self.weights)
        for bucket in sorted(self.weights):
            rest -= self.weights[bucket]
            if rest <= 0:
                last = bucket
                break
        return float(2 ** (last / _PER_DOUBLING))

    def _put(self, bucket: int, weight: float) -> None:
        self.weights[bucket] = self.weights.get(bucket, 0) + weight
        self.total += weight
