"""How evenly the tenants of each pool were served, window by window."""

from collections import defaultdict
from collections.abc import Mapping

from streams import metrics
from streams.limits import LiveLimits
from streams.policy import fairness
from streams.settings import Streams
from topics.records import Usage

MAX_TENANTS = 10_000
"""Told apart in a pool and window.  Too small: the index leaves out tenants.  Too large: memory."""


OTHER = "(other)"


class Served:
    """Served cost by pool and tenant in the present spend window.  One writer, the settle agent.

    Invariant: at most MAX_TENANTS are told apart in a pool.
    """

    def __init__(self, settings: Streams, limits: LiveLimits) -> None:
        """A tenant is entitled to the refill of its budget, as it holds at the end of the window."""
        self._settings, self._limits = settings, limits
        self._window = 0.0
        self._units: dict[str, dict[str, float]] = {}

    def add(self, usage: Usage, units: float, at_s: float) -> None:
        """Count one attempt; the first of a new window closes the one before."""
        window = at_s // self._settings.spend_window_s
        if window > self._window:
            self._close()
            self._window = window
        tenants = self._units.setdefault(usage.pool, defaultdict(float))
        if usage.tenant in tenants or len(tenants) < MAX_TENANTS:
            tenants[usage.tenant] += units

    def _close(self) -> None:
        for pool, tenants in self._units.items():
            index = fairness.jain(
                [units / self._limits.of("tenant", tenant).refill_units_per_s for tenant, units in tenants.items()]
            )
            if index is not None:
                metrics.JAIN.labels(pool).set(index)
        metrics.show_tenants(
            {pool: largest(tenants, self._settings.tenant_series) for pool, tenants in self._units.items()}
        )
        self._units = {}


def largest(units: Mapping[str, float], count: int) -> dict[str, float]:
    """The tenants with the most, and all others together as OTHER, which is no name of a tenant."""
    ordered = sorted(units.items(), key=lambda one: (-one[1], one[0]))
    return {**dict(ordered[:count]), OTHER: sum(value for _, value in ordered[count:])}
