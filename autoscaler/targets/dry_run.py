"""A target that only says what it would do."""

import structlog

from autoscaler.target import Unstarted

log = structlog.get_logger()


class DryRunTarget:
    """Remembers and logs the counts; runs nothing."""

    def __init__(self) -> None:
        self._replicas: dict[str, int] = {}

    def replicas(self, pool: str) -> int:
        """The last count asked for, 0 at first."""
        return self._replicas.get(pool, 0)

    def problem(self, pool: str) -> str | None:  # noqa: ARG002 - the protocol's
        """Nothing can be in the way."""
        return None

    def unstarted(self, pool: str) -> Unstarted | None:  # noqa: ARG002 - the protocol's
        """Nothing runs here, nor is missing."""
        return None

    def scale(self, pool: str, replicas: int) -> None:
        """Log a change."""
        if replicas != self.replicas(pool):
            log.info("would_scale", pool=pool, replicas_from=self.replicas(pool), replicas_to=replicas)
            self._replicas[pool] = replicas

    def close(self) -> None:
        """Nothing runs, so nothing ends."""
