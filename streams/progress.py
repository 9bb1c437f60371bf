"""Is this worker getting on?  What /livez and /readyz answer."""

import contextlib
from collections.abc import Iterator

import faust

from streams import metrics
from topics.clock import Clock

_BEAT_S = 1.0
_STUCK_LOOP_S = 15.0


class Progress:
    """Notes when batches begin and end and when the event loop last ran.

    Alive means: the loop runs, no batch is older than the limit (Redis being away is not this process's fault), and
    no partition has records that were read long ago and are still uncommitted.
    """

    def __init__(self, clock: Clock, limit_s: float) -> None:
        """`limit_s`: how long a batch may take, or a commit be due, before something must be broken."""
        self._clock, self._limit_s = clock, limit_s
        self._begun: dict[str, float] = {}
        self._beat_s = clock.mono_s()
        self._committed: dict[object, tuple[int, float]] = {}

    @contextlib.contextmanager
    def batch(self, agent: str) -> Iterator[None]:
        """Time one batch; each agent has one at a time."""
        begun_s = self._begun[agent] = self._clock.mono_s()
        yield
        del self._begun[agent]
        metrics.BATCH_SECONDS.labels(agent).observe(self._clock.mono_s() - begun_s)

    def watch(self, app: faust.App) -> None:
        """Beat once a second on the application's loop, and follow its commits."""

        @app.timer(_BEAT_S)
        async def beat() -> None:
            self._beat_s = self._clock.mono_s()
            monitor = app.monitor
            for tp in app.assignor.assigned_actives() if app.rebalancing is False else ():
                committed = monitor.tp_committed_offsets.get(tp)
                read = monitor.tp_read_offsets.get(tp)
                if read is None or committed is None or committed > read:
                    self._committed.pop(tp, None)
                elif tp not in self._committed or self._committed[tp][0] != committed:
                    self._committed[tp] = (committed, self._beat_s)

    def complaint(self) -> str | None:
        """What is wrong, or None."""
        now_s = self._clock.mono_s()
        if now_s - self._beat_s > _STUCK_LOOP_S:
            return f"the event loop has not run for {now_s - self._beat_s:.0f} s"
        if not metrics.redis_available():
            return None
        for agent, begun_s in list(self._begun.items()):
            if now_s - begun_s > self._limit_s:
                return f"a batch of {agent} has been in work for {now_s - begun_s:.0f} s"
        for tp, (offset, since_s) in list(self._committed.items()):
            if now_s - since_s > self._limit_s:
                return f"{tp} has been committed at {offset} for {now_s - since_s:.0f} s although more was read"
        return None
