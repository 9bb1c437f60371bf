"""What the loop acts on."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Unstarted:
    """Replicas of a pool that were ordered and do not run."""

    pending: int
    unschedulable: int
    """Of these, those for which no machine has room."""


class ScaleTarget(Protocol):
    """Runs a pool's consumers somewhere."""

    def replicas(self, pool: str) -> int:
        """How many are to run now, one that is being replaced after a crash included, draining ones not."""

    def problem(self, pool: str) -> str | None:
        """Look where the pool runs; what keeps it from being sized, or None.  Called first in every round."""

    def unstarted(self, pool: str) -> Unstarted | None:
        """What of the count does not run as of the last look; None where that is not known."""

    def scale(self, pool: str, replicas: int) -> None:
        """Have that many from now on.  Called every round, changed or not; must not wait for a drain."""

    def close(self) -> None:
        """End what this target started, running work first, within a bound of its own."""
