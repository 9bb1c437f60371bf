"""Tells placement and scaling how this consumer is: every half second and whenever its state changes."""

from dataclasses import dataclass

import structlog

from gpu_consumers.dispatch import Dispatcher
from gpu_consumers.gpu import GpuProbe, Reading
from gpu_consumers.outbox import Letter, Outbox
from gpu_consumers.policy import capacity
from gpu_consumers.policy.intake import Intake, Limits, State, judge
from gpu_consumers.poller import Poller
from gpu_consumers.running import Runner
from gpu_consumers.settings import GpuSettings
from gpu_consumers.settling import Settler
from gpu_consumers.sharing import SharePoller
from topics import codec
from topics.clock import Clock
from topics.telemetry import Telemetry

log = structlog.get_logger()


AnyPoller = Poller | SharePoller


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures come from."""

    poller: AnyPoller
    dispatcher: Dispatcher
    runner: Runner
    settler: Settler
    probe: GpuProbe


class Reporter:
    """Sends Telemetry.  Touched only by the loop."""

    def __init__(self, settings: GpuSettings, sources: Sources, outbox: Outbox, clock: Clock) -> None:
        self._settings, self._sources, self._outbox, self._clock = settings, sources, outbox, clock
        self.gpu = Reading()
        """The last look."""
        gpu = settings.gpu
        self.intake = Intake()
        """Whether new work is taken in."""
        self._limits = Limits(gpu.max_temperature_c, gpu.max_memory_used_ratio)
        self._rules = capacity.rules(gpu.speed if gpu.engine == "simulated" else 1.0)
        self._seen = capacity.Seen()
        self._looked_s = clock.mono_s()
        self._done_units = 0.0
        self._was_warm = False

    def look(self) -> None:
        """See what the engine did since the last call; some times a second."""
        s, now_s = self._sources, self._clock.mono_s()
        is_warm = s.runner.has_finished
        s.runner.refresh()
        done_units = s.runner.done_units()
        interval = capacity.Interval(
            took_s=now_s - self._looked_s,
            has_waited=s.dispatcher.take_waited() and self._was_warm,
            done_units=done_units - self._done_units,
            inside_units=s.runner.seats.held.cost_units,
        )
        self._seen = capacity.look(self._seen, interval, self._rules)
        self._looked_s, self._done_units, self._was_warm = now_s, done_units, is_warm
        self._judge_intake()

    def _judge_intake(self) -> None:
        self.gpu = gpu = self._sources.probe.last()
        engine = self._sources.runner.load.closed
        before = self.intake
        self.intake = judge(before, State(gpu.temperature_c, gpu.memory_used_ratio, engine is None), self._limits)
        if self.intake != before:
            log.warning(
                "intake_changed", intake=str(self.intake), temperature_c=gpu.temperature_c,
                memory_used_ratio=gpu.memory_used_ratio, engine=engine,
            )  # fmt: skip

    def send(self, state: str) -> None:
        """Send the present figures; a lost one is made up by the next."""
        topic = self._settings.topic("telemetry")
        key = self._settings.gpu.consumer_id.encode()
        self._outbox.send(Letter(topic, key, codec.encode(self.read(state))), None)

    def read(self, state: str) -> Telemetry:
        """The present figures."""
        s = self._sources
        load = s.runner.load
        lanes: dict[str, list[int]] = {}
        for assignment in s.poller.owned():
            lanes.setdefault(assignment.topic, []).append(assignment.partition)
        return Telemetry(
            consumer=self._settings.gpu.consumer_id,
            pool=self._settings.gpu.pool,
            state=state,
            at_s=self._clock.wall_s(),
            role=self._settings.gpu.role.value,
            gpu_type=self._settings.gpu.gpu_type,
            lanes=lanes if state != "gone" else {},
            queued_units=max(0.0, s.dispatcher.buffers.units),  # sums of fractions may end just below zero
            inflight_units=max(0.0, s.runner.seats.held.cost_units),
            inflight_requests=s.runner.seats.held.sequences,
            free_kv_tokens=load.free_kv_tokens,
            dispatched_units_total=s.dispatcher.dispatched_units,
            finished_units_total=s.settler.finished_units,
            latency_ewma_s=s.runner.latency_s,
            gpu_memory_used_ratio=self.gpu.memory_used_ratio,
            gpu_temperature_c=self.gpu.temperature_c,
            gpu_busy_ratio=self.gpu.busy_ratio,
            intake=None if self.intake.is_open else str(self.intake),
            engine_running=load.running,
            engine_waiting=load.waiting,
            ttft_ewma_s=s.runner.ttft_s,
            total_kv_tokens=load.total_kv_tokens,
            capacity_units_per_s=capacity.units_per_s(self._seen, self._rules),
            capacity_units=capacity.units(self._seen, self._rules),
        )
