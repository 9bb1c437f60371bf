"""A target that sizes nothing: an HPA does, by what is on /metrics."""

from collections.abc import Callable

from autoscaler.target import Unstarted


class MetricTarget:
    """Says how many consumers there are, and leaves their number to others."""

    def __init__(self, ready: Callable[[str], int]) -> None:
        """`ready` is how many consumers of a pool said lately that they are ready."""
        self._ready = ready

    def problem(self, pool: str) -> str | None:  # noqa: ARG002 - the protocol's
        """Nothing can be in the way."""
        return None

    def replicas(self, pool: str) -> int:
        """Those that are ready: the others' target is not known here."""
        return self._ready(pool)

    def unstarted(self, pool: str) -> Unstarted | None:  # noqa: ARG002 - the protocol's
        """Others know."""
        return None

    def scale(self, pool: str, replicas: int) -> None:
        """The decision is on /metrics and in the log; nothing follows from it here."""

    def close(self) -> None:
        """Nothing was started."""
