"""Is this worker getting on?  What /livez answers, and when it had better start again."""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator

import faust
from faust.types import TP
from structlog import get_logger

from streams import metrics
from streams.app import left_out, owned
from topics import process
from topics.clock import Clock

_log = get_logger()
_BEAT_S = 1.0
_GAP_S = 20.0
_STUCK_LOOP_S = 15.0
_DEAD_AGENT_S = 10.0
_BLIND_S = 10.0


class Progress:
    """Notes when batches begin and end, when the event loop last ran, and how long the tables are being recovered.

    Alive means: the loop runs, every agent does, no batch is older than the limit, and no partition has records that
    were read long ago and are still uncommitted.  Redis or Kafka being away is not this process's fault.
    """

    def __init__(self, clock: Clock, limit_s: float, recovery_limit_s: float = 120.0) -> None:
        """`limit_s`: how long a batch may take, or a commit be due, before something must be broken."""
        self._clock, self._limit_s, self._recovery_limit_s = clock, limit_s, recovery_limit_s
        self._turn = itertools.count()
        self._begun: dict[tuple[str, int], float] = {}
        self._beat_s, self._has_begun = clock.mono_s(), False
        self._committed: dict[TP, tuple[int, float]] = {}
        """Partitions with records in work: where they are committed, and since when nothing excuses that."""
        self._stayed: dict[TP, tuple[int, float]] = {}
        """The same without excuses."""
        self._ended: dict[str, float] = {}
        self._recovery: tuple[int, float] | None = None
        self._blind_s: float | None = None
        self._rebalances = 0

    @contextlib.contextmanager
    def batch(self, agent: str) -> Iterator[None]:
        """Time one batch; an agent may have several in work."""
        turn = (agent, next(self._turn))
        begun_s = self._begun[turn] = self._clock.mono_s()
        try:
            yield
        finally:
            del self._begun[turn]
        metrics.BATCH_SECONDS.labels(agent).observe(self._clock.mono_s() - begun_s)

    def look_at_recovery(self, app: faust.App) -> None:
        """End the process when a recovery has gone on for too long; each rebalance begins one.

        Faust waits for ever for a changelog record that never comes: one that was compacted, or a transaction's end.
        """
        now_s = self._clock.mono_s()
        if not (app.rebalancing or app.in_recovery) or metrics.missing() is not None:
            self._recovery = None
        elif self._recovery is None or self._recovery[0] != app.rebalancing_count:
            self._recovery = (app.rebalancing_count, now_s)
        elif now_s - self._recovery[1] > self._recovery_limit_s:
            _log.error(
                "recovery_did_not_end",
                limit_s=self._recovery_limit_s,
                doing="the process ends; look at the changelog topic, or raise RAMPMETER_STREAMS__RECOVERY_LIMIT_S",
            )
            os._exit(process.EXIT_UNAVAILABLE)

    def look_at_assignment(self, app: faust.App) -> None:
        """End the process when it decided for the group without knowing all topics and nobody joined or left since.

        Its leaving has the group decide again.
        """
        now_s, unknown = self._clock.mono_s(), left_out(app)
        if not unknown or metrics.missing() is not None:
            self._blind_s = None
        elif self._blind_s is None:
            self._blind_s = now_s
        elif now_s - self._blind_s > _BLIND_S:
            _log.error(
                "topics_unknown",
                topics=sorted(unknown),
                doing="the process ends, so that the group decides again; look with `rampmeter topics check`",
            )
            os._exit(process.EXIT_UNAVAILABLE)

    def watch(self, app: faust.App) -> None:
        """Beat once a second on the application's loop, and follow its agents and its commits.

        A partition with a gap among its finished records will never be committed again (faust-streaming/faust#596): the
        process ends, and its successor reads on from the commit.  The recovery is followed from a thread, since Faust
        runs no timer before it has ended.
        """

        @app.timer(_BEAT_S)
        async def beat() -> None:
            now_s, self._has_begun = self._clock.mono_s(), True
            self._beat_s = now_s
            self._look_at_agents(app, now_s)
            self._look_at_commits(app, now_s)
            self._show(app, now_s)
            if (gap := self._uncommitted(_GAP_S)) is not None:
                _log.error("commits_stalled", what=gap)
                os._exit(process.EXIT_BUG)

        def look() -> None:
            while not threading.Event().wait(_BEAT_S):
                self.look_at_recovery(app)
                self.look_at_assignment(app)

        threading.Thread(target=look, name="recovery", daemon=True).start()

    def _show(self, app: faust.App, now_s: float) -> None:
        metrics.REBALANCES.inc(app.rebalancing_count - self._rebalances)
        self._rebalances = app.rebalancing_count
        metrics.UNCOMMITTED.set(max((now_s - since_s for _, since_s in self._stayed.values()), default=0.0))

    def _look_at_commits(self, app: faust.App, now_s: float) -> None:
        ours = set() if app.rebalancing else owned(app)
        for book in (self._committed, self._stayed):
            for tp in book.keys() - ours:  # whoever has it now begins anew
                del book[tp]
        for tp in ours:
            committed = app.monitor.tp_committed_offsets.get(tp, -1)
            read = app.monitor.tp_read_offsets.get(tp)
            is_excused = self._is_excused(app, tp.topic)
            for book, begins_anew in ((self._committed, is_excused), (self._stayed, False)):
                if read is None or committed > read:
                    book.pop(tp, None)
                elif begins_anew or tp not in book or book[tp][0] != committed:
                    book[tp] = (committed, now_s)

    def _look_at_agents(self, app: faust.App, now_s: float) -> None:
        for name, agent in app.agents.items():
            if any(actor.actor_task is not None and not actor.actor_task.done() for actor in agent._actors):  # noqa: SLF001
                self._ended.pop(name, None)
            else:
                self._ended.setdefault(name, now_s)

    def _is_excused(self, app: faust.App, topic: str) -> bool:
        return metrics.missing() is not None or any(
            topic in app.agents[agent].channel.topics for agent, _ in list(self._begun)
        )

    def complaint(self) -> str | None:
        """What is wrong, or None."""
        now_s = self._clock.mono_s()
        beats_within_s = _STUCK_LOOP_S if self._has_begun else self._recovery_limit_s + _STUCK_LOOP_S
        if now_s - self._beat_s > beats_within_s:
            return f"the event loop has not run for {now_s - self._beat_s:.0f} s"
        for agent, ended_s in list(self._ended.items()):
            if now_s - ended_s > _DEAD_AGENT_S:
                return f"the agent {agent} ended {now_s - ended_s:.0f} s ago"
        if metrics.missing() is not None:
            return None
        for (agent, _), begun_s in list(self._begun.items()):
            if now_s - begun_s > self._limit_s:
                return f"a batch of {agent} has been in work for {now_s - begun_s:.0f} s"
        return None

    def _uncommitted(self, limit_s: float) -> str | None:
        now_s = self._clock.mono_s()
        for tp, (offset, since_s) in self._committed.items():
            if now_s - since_s > limit_s:
                return f"{tp.topic}-{tp.partition} stays committed at {offset} for {now_s - since_s:.0f} s"
        return None
