"""Is this process of use?  /livez asks for progress, /readyz for its dependencies.  Called from the status thread."""

from gpu_consumers.claims import Claims
from gpu_consumers.outbox import Outbox
from gpu_consumers.settings import Gpu
from gpu_consumers.telemetry import Sources
from topics.clock import Clock

_KAFKA_TIMEOUT_S = 1.0
_SUSPICIOUS_RATIO = 1 / 3
"""Of `stall_s`.  Too small: a question to the broker in each long attempt.  Too large: too few looks before a stall."""
_IDLE_AFTER_S = 10.0
"""A member that was given nothing for this long has nothing to wait for: there are more consumers than partitions."""


class Health:
    """The two probes.

    A standstill while Kafka or Redis is known to be away is not the process's fault, and a restart would only drop what
    it runs: such time counts for no stall.
    """

    def __init__(self, gpu: Gpu, sources: Sources, claims: Claims, outbox: Outbox, clock: Clock) -> None:
        self._gpu, self._sources, self._claims, self._outbox, self._clock = gpu, sources, claims, outbox, clock
        self._started_s = self._idle_s = self._away_s = clock.mono_s()
        self._is_kafka_away = False
        self.is_warming = False
        """Nothing is taken in yet."""

    def live(self) -> str | None:
        """Complain when work waits outside the engine and neither dispatch, engine nor commit moved for `stall_s`."""
        s, now_s = self._sources, self._clock.mono_s()
        if self.is_warming:
            return None
        if not s.poller.is_alive:
            return "the poll thread is dead"
        if self._unturned_s(now_s) > self._gpu.stall_s + self._gpu.drain_deadline_s:
            return f"the poll thread has not turned for {self._unturned_s(now_s):.0f} s"
        if s.dispatcher.takes_in and self._waiting() and self._unmoved_s(now_s) > self._gpu.stall_s:
            return f"{self._waiting()} requests wait and nothing has moved for {self._unmoved_s(now_s):.0f} s"
        return None

    def ready(self) -> str | None:
        """Complain while work cannot be taken."""
        s, now_s = self._sources, self._clock.mono_s()
        if s.dispatcher.is_draining:
            return "draining"
        if (closed := self._intake()) is not None:
            return closed
        if not s.poller.owned() and now_s - self._started_s < _IDLE_AFTER_S:
            return "no partition is assigned yet"
        if not self._claims.available and self._gpu.without_redis == "wait":
            return "Redis does not answer"
        if not self._outbox.is_broker_there(_KAFKA_TIMEOUT_S):
            return "Kafka does not answer"
        return None

    def note(self) -> None:
        """Called a few times a second: while nothing waits, nothing can stall."""
        if not self._waiting():
            self._idle_s = self._clock.mono_s()
        if not self._claims.available:
            self._away_s = self._clock.mono_s()

    def is_suspicious(self) -> bool:
        """Whether a stall may be on its way, or Kafka was away at the last look, so that it is time for another."""
        now_s = self._clock.mono_s()
        return (
            self._is_kafka_away
            or max(self._unturned_s(now_s), self._unmoved_s(now_s)) > self._gpu.stall_s * _SUSPICIOUS_RATIO
        )

    def look(self) -> None:
        """See whether the broker is there; blocks, from any thread."""
        self._is_kafka_away = not self._outbox.is_broker_there(_KAFKA_TIMEOUT_S)
        if self._is_kafka_away:
            self._away_s = self._clock.mono_s()

    def _intake(self) -> str | None:
        s = self._sources
        if self.is_warming:
            return "the engine warms up"
        if s.runner.load.closed is not None:
            return f"the engine takes nothing: {s.runner.load.closed}"
        if not s.dispatcher.takes_in:
            return "nothing new is taken in: the GPU is too hot or its memory is full"
        return None

    def _unturned_s(self, now_s: float) -> float:
        return now_s - max(self._sources.poller.turned_s, self._away_s)

    def _unmoved_s(self, now_s: float) -> float:
        s = self._sources
        moved_s = max(s.dispatcher.moved_s, s.runner.moved_s, s.settler.moved_s, s.poller.moved_s)
        return now_s - max(moved_s, self._idle_s, self._away_s)

    def _waiting(self) -> int:
        return self._sources.dispatcher.buffers.records + self._sources.settler.open
