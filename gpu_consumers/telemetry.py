"""Tells placement and scaling how this consumer is: every half second and whenever its state changes."""

from dataclasses import dataclass

from gpu_consumers.dispatch import Dispatcher
from gpu_consumers.engine import Engine
from gpu_consumers.gpu import GpuProbe, Reading
from gpu_consumers.outbox import Letter, Outbox
from gpu_consumers.poller import Poller
from gpu_consumers.running import Runner
from gpu_consumers.settings import GpuSettings
from gpu_consumers.settling import Settler
from topics import codec
from topics.clock import Clock
from topics.records import Telemetry


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures come from."""

    poller: Poller
    dispatcher: Dispatcher
    runner: Runner
    settler: Settler
    engine: Engine
    probe: GpuProbe


class Reporter:
    """Sends Telemetry.  Touched only by the loop."""

    def __init__(self, settings: GpuSettings, sources: Sources, outbox: Outbox, clock: Clock) -> None:
        self._settings, self._sources, self._outbox, self._clock = settings, sources, outbox, clock
        self.gpu = Reading()
        """The last look."""

    def send(self, state: str) -> None:
        """Send the present figures; a lost one is made up by the next."""
        self.gpu = self._sources.probe.read()
        topic = self._settings.topic("telemetry")
        key = self._settings.gpu.consumer_id.encode()
        self._outbox.send(Letter(topic, key, codec.encode(self.read(state))), None)

    def read(self, state: str) -> Telemetry:
        """The present figures."""
        s = self._sources
        lanes: dict[str, list[int]] = {}
        for assignment in s.poller.owned():
            lanes.setdefault(assignment.topic, []).append(assignment.partition)
        return Telemetry(
            consumer=self._settings.gpu.consumer_id,
            pool=self._settings.gpu.pool,
            state=state,
            at_s=self._clock.wall_s(),
            lanes=lanes if state != "gone" else {},
            queued_units=s.dispatcher.buffers.units,
            inflight_units=s.runner.seats.cost_units,
            inflight_requests=s.runner.seats.sequences,
            free_kv_tokens=s.engine.load().free_kv_tokens,
            dispatched_units_total=s.dispatcher.dispatched_units,
            finished_units_total=s.settler.finished_units,
            latency_ewma_s=s.runner.latency_s,
            gpu_memory_used_ratio=self.gpu.memory_used_ratio,
            gpu_temperature_c=self.gpu.temperature_c,
        )
