"""A shared number of GPUs: who gets how many when all pools together want more than there are.  Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ask:
    """What a pool wants.  Invariant: 0 <= min_replicas, and gpus_per_replica > 0."""

    pool: str
    wanted: int
    min_replicas: int
    gpus_per_replica: int
    priority: int
    """The larger goes first; equals go in the order in which they are given."""


def share(asks: Sequence[Ask], gpus: int) -> dict[str, int]:
    """Replicas by pool: the minimum of each, then the rest by priority.  Minimums hold even beyond the quota."""
    given = {ask.pool: min(ask.wanted, ask.min_replicas) for ask in asks}
    left = gpus - sum(given[ask.pool] * ask.gpus_per_replica for ask in asks)
    for ask in sorted(asks, key=lambda ask: -ask.priority):
        more = max(0, min(ask.wanted - given[ask.pool], left // ask.gpus_per_replica))
        given[ask.pool] += more
        left -= more * ask.gpus_per_replica
    return given
