"""Which partition of a lane: the one whose owner has least to do.  Unknown load spreads evenly.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

_HOT_C = 85.0
_FULL_RATIO = 0.97


@dataclass(frozen=True, slots=True)
class Owner:
    """A consumer as its telemetry shows it, with what was placed on it since."""

    consumer: str
    load_units: float
    ready: bool
    gpu_memory_used_ratio: float | None = None
    gpu_temperature_c: float | None = None

    def healthy(self) -> bool:
        """Unknown memory or temperature is no illness."""
        too_full = self.gpu_memory_used_ratio is not None and self.gpu_memory_used_ratio > _FULL_RATIO
        too_hot = self.gpu_temperature_c is not None and self.gpu_temperature_c > _HOT_C
        return self.ready and not too_full and not too_hot


def choose_partition(owners: Mapping[int, Owner], count: int, turn: int) -> int:
    """The partition (of `count`) to put work on.

    `owners` maps the partitions whose owner is known.  The least loaded healthy owner wins; `turn` counts up and
    spreads equals and the unknown.
    """
    candidates = [p for p in range(count) if p in owners and owners[p].healthy()]
    if not candidates:
        return turn % count
    least = min(owners[p].load_units for p in candidates)
    best = [p for p in candidates if owners[p].load_units <= least]
    return best[turn % len(best)]
