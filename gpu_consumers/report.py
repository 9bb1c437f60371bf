"""A line of the log that says how the last minute was."""

import structlog

from gpu_consumers.metrics import Metrics
from gpu_consumers.telemetry import Sources

log = structlog.get_logger()


class Report:
    """Called by the maintenance thread: it reads what the loop owns and changes nothing."""

    def __init__(self, sources: Sources, metrics: Metrics) -> None:
        self._sources, self._metrics = sources, metrics
        self._answers = 0.0

    def tell(self) -> None:
        """Tell what was answered since the last call, and how it stands."""
        s, before = self._sources, self._answers
        self._answers = self._metrics.answers()
        log.info(
            "report", answered=int(self._answers - before), running=s.runner.running,
            waiting=s.dispatcher.buffers.records, settling=s.settler.open, held=s.dispatcher.held,
            latency_s=s.runner.latency_s, ttft_s=s.runner.ttft_s, partitions=len(s.poller.owned()),
        )  # fmt: skip
