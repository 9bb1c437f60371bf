"""Is this worker getting on?  What /livez answers, and when it had better start again."""

import contextlib
import os
from collections.abc import Iterator

import faust
from faust.types import TP
from structlog import get_logger

from streams import metrics
from topics import process
from topics.clock import Clock

_log = get_logger()
_BEAT_S = 1.0
_GAP_S = 20.0
_STUCK_LOOP_S = 15.0


class Progress:
    """Notes when batches begin and end and when the event loop last ran.

    Alive means: the loop runs, no batch is older than the limit, and no partition has records that were read long ago
    and are still uncommitted.  Redis or Kafka being away is not this process's fault.
    """

    def __init__(self, clock: Clock, limit_s: float) -> None:
        """`limit_s`: how long a batch may take, or a commit be due, before something must be broken."""
        self._clock, self._limit_s = clock, limit_s
        self._begun: dict[str, float] = {}
        self._beat_s = clock.mono_s()
        self._committed: dict[TP, tuple[int, float]] = {}

    @contextlib.contextmanager
    def batch(self, agent: str) -> Iterator[None]:
        """Time one batch; each agent has one at a time."""
        begun_s = self._begun[agent] = self._clock.mono_s()
        yield
        del self._begun[agent]
        metrics.BATCH_SECONDS.labels(agent).observe(self._clock.mono_s() - begun_s)

    def watch(self, app: faust.App) -> None:
        """Beat once a second on the application's loop, and follow its commits.

        A partition with a gap among its finished records will never be committed again (faust-streaming/faust#596): the
        process ends, and its successor reads on from the commit.
        """

        @app.timer(_BEAT_S)
        async def beat() -> None:
            self._beat_s = self._clock.mono_s()
            monitor = app.monitor
            for tp in app.assignor.assigned_actives() if app.rebalancing is False else ():
                committed = monitor.tp_committed_offsets.get(tp, -1)
                read = monitor.tp_read_offsets.get(tp)
                if read is None or committed > read:
                    self._committed.pop(tp, None)
                elif tp not in self._committed or self._committed[tp][0] != committed or self._is_excused(tp.topic):
                    self._committed[tp] = (committed, self._beat_s)
            if (gap := self._uncommitted(_GAP_S)) is not None:
                _log.error("commits_stalled", what=gap)
                os._exit(process.EXIT_BUG)

    def _is_excused(self, topic: str) -> bool:
        return metrics.missing() is not None or any(topic.endswith(agent) for agent in list(self._begun))

    def complaint(self) -> str | None:
        """What is wrong, or None."""
        now_s = self._clock.mono_s()
        if now_s - self._beat_s > _STUCK_LOOP_S:
            return f"the event loop has not run for {now_s - self._beat_s:.0f} s"
        if metrics.missing() is not None:
            return None
        for agent, begun_s in list(self._begun.items()):
            if now_s - begun_s > self._limit_s:
                return f"a batch of {agent} has been in work for {now_s - begun_s:.0f} s"
        return None

    def _uncommitted(self, limit_s: float) -> str | None:
        now_s = self._clock.mono_s()
        for tp, (offset, since_s) in self._committed.items():
            if now_s - since_s > limit_s:
                return f"{tp.topic}-{tp.partition} stays committed at {offset} for {now_s - since_s:.0f} s"
        return None
