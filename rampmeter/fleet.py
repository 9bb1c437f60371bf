"""How many consumers of a pool are at work, from their telemetry."""

from topics.telemetry import Telemetry

STALE_S = 3.0
"""A consumer that said nothing for this long does not count."""


class Fleet:
    """Fewest and most consumers seen; written by one thread."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._last: dict[str, Telemetry] = {}
        self.low: int | None = None
        self.high: int | None = None

    def note(self, telemetry: Telemetry) -> None:
        """Take a consumer's latest word."""
        if telemetry.pool == self._pool:
            self._last[telemetry.consumer] = telemetry

    def size(self, now_s: float) -> int:
        """Consumers that are ready now."""
        return sum(1 for t in self._last.values() if t.state == "ready" and now_s - t.at_s <= STALE_S)

    def sample(self, now_s: float) -> int:
        """Count, and remember the extremes once there was one; who falls silent without a farewell is not gone yet."""
        size = self.size(now_s)
        is_known = not any(t.state == "ready" and now_s - t.at_s > STALE_S for t in self._last.values())
        if (size or self.high) and is_known:
            self.low = size if self.low is None else min(self.low, size)
        if size:
            self.high = max(self.high or 0, size)
        return size

    def is_shrunk(self, now_s: float) -> bool:
        """Tell whether no more consumers are at work than at the least before."""
        return self.low is not None and self.size(now_s) <= self.low
