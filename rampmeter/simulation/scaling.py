"""The autoscaler in virtual time: what `autoscaler.loop` does with a broker and processes, by the same policies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from autoscaler.policy import rate, replicas
from autoscaler.policy.replicas import Load, Memory
from autoscaler.settings import Autoscaler
from rampmeter.simulation.consumer import Consumer, topic_of
from rampmeter.simulation.lanes import Partition
from topics.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Scaling:
    """Bounds of the fleet, and how long an engine takes from its order to its first request."""

    min_replicas: int
    max_replicas: int
    cold_s: float = 30.0
    settings: Autoscaler = field(default_factory=Autoscaler)


class Scaler:
    """Sense, decide, act, once a period.  Reports of consumers come through `note`."""

    def __init__(self, scaling: Scaling, partitions: Sequence[Partition], scale: Callable[[int, float], None]) -> None:
        """`scale` makes the fleet that large."""
        self._scaling, self._partitions, self._scale = scaling, partitions, scale
        count = len({partition.index for partition in partitions})
        self._limits = scaling.settings.limits(scaling.min_replicas, scaling.max_replicas, count)
        self._service = rate.ServiceRate(scaling.settings.nominal_units_per_s)
        self._arrivals: rate.Arrivals | None = None
        self._memory = Memory()
        self._spans: dict[str, rate.BusySpan | None] = {}
        self._mean_units: dict[str, float] = {}
        self.replicas = scaling.min_replicas

    def note(self, telemetry: Telemetry) -> None:
        """Learn what one replica serves."""
        report = rate.Report(telemetry.at_s, telemetry.finished_units_total, telemetry.queued_units)
        span, sample = rate.follow(self._spans.get(telemetry.consumer), report)
        self._spans[telemetry.consumer] = span
        if sample is not None:
            self._service = rate.learn(self._service, sample, self._scaling.settings.nominal_units_per_s)

    def step(self, now_s: float) -> None:
        """One round."""
        made = replicas.decide(self._sense(now_s), self.replicas, self._memory, self._limits, now_s)
        self._memory = made.memory
        if made.replicas != self.replicas:
            self.replicas = made.replicas
            self._scale(made.replicas, now_s)

    def _sense(self, now_s: float) -> Load:
        appended: dict[str, int] = {}
        waiting_units, waiting_records = 0.0, 0
        for partition in self._partitions:
            lane = topic_of(partition.lane)
            appended[lane] = appended.get(lane, 0) + partition.appended_records
            if partition.appended_records:
                units = partition.last_units
                self._mean_units[lane] = rate.blend_cost(self._mean_units.get(lane), units)
            waiting_units += sum(job.ask.cost_units for job in partition.waiting)
            waiting_records += len(partition.waiting)
        memory_s = self._scaling.settings.arrival_memory_s
        self._arrivals = rate.arrivals(self._arrivals, appended, self._mean_units, memory_s, now_s)
        return Load(waiting_records, waiting_units, self._arrivals.units_per_s, self._service.units_per_s)


class Crew:
    """The consumers of a fleet that grows and shrinks: who is ordered, ready, draining, and for how long held."""

    def __init__(self, hire: Callable[[int], Consumer]) -> None:
        """`hire` makes the consumer of a number."""
        self._hire = hire
        self.members: list[Consumer] = []
        self.held: list[tuple[float, int]] = []
        """Seconds, and engines held from then on."""
        self._numbers = 0

    def order(self, count: int, now_s: float) -> list[Consumer]:
        """More consumers, which start now and are not ready yet."""
        new = [self._hire(self._numbers + number) for number in range(count)]
        self._numbers += count
        for consumer in new:
            consumer.state = "starting"
        self.members += new
        self._note(now_s)
        return new

    def dismiss(self, count: int) -> list[Consumer]:
        """So many of those that hold the least stop taking work."""
        staying = [member for member in self.members if member.state != "draining"]
        going = sorted(staying, key=lambda member: (member.state == "ready", member.held.cost_units))[:count]
        for consumer in going:
            consumer.state = "draining"
        return going

    def let_go(self, now_s: float) -> bool:
        """Forget who is drained; tells whether anyone was."""
        gone = [member for member in self.members if member.state == "draining" and not member.running]
        self.members = [member for member in self.members if member not in gone]
        if gone:
            self._note(now_s)
        return bool(gone)

    @property
    def wanted(self) -> int:
        """Those that are not leaving."""
        return sum(member.state != "draining" for member in self.members)

    def _note(self, now_s: float) -> None:
        self.held.append((now_s, len(self.members)))


def engine_s(held: Sequence[tuple[float, int]], end_s: float) -> float:
    """Engine seconds held until then; `held`: seconds, and engines held from then on."""
    return sum((later_s - at_s) * count for (at_s, count), (later_s, _) in pairwise([*held, (end_s, 0)]))
