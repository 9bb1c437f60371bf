"""The autoscaler in virtual time: what `autoscaler.loop` does with a broker and processes, by the same policies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from autoscaler.policy import rate, replicas, sensing
from autoscaler.policy.demand import Load, Waits
from autoscaler.policy.replicas import Memory
from autoscaler.settings import Autoscaler
from rampmeter.simulation.consumer import Consumer, topic_of
from rampmeter.simulation.lanes import Partition
from topics.records import Tier
from topics.telemetry import Telemetry

Scale = Callable[[int, float], None]
"""Makes the fleet that large, from that second on."""
Rule = Literal["ours", "keda-lag", "keda-tuned", "hpa-queue"]
"""Ours, or one of `rival_scalers`."""
_TIERS = tuple(Tier)


@dataclass(frozen=True, slots=True)
class Scaling:
    """Bounds of the fleet, and how long an engine takes from its order to its first request."""

    min_replicas: int
    max_replicas: int
    cold_s: float = 30.0
    settings: Autoscaler = field(default_factory=Autoscaler)
    rule: Rule = "ours"


class Scaler:
    """Sense, decide, act, once a period.  Reports of consumers come through `note`."""

    def __init__(self, scaling: Scaling, scene: "Scene", scale: Scale) -> None:
        self._scaling, self._scene, self._scale = scaling, scene, scale
        self._partitions, self._fleet = scene.partitions, scene.fleet
        self._count = len({partition.index for partition in scene.partitions})
        self._limits = scaling.settings.limits(scaling.min_replicas, scaling.max_replicas, self._count)
        self._rules = scaling.settings.sensing()
        self._known = sensing.nothing(self._rules)
        self._memory = Memory()
        self._spans: dict[str, rate.BusySpan | None] = {}
        self._mean_units: dict[str, float] = {}
        self._owners: list[str | None] = []
        self.period_s = scaling.settings.period_s

    def note(self, telemetry: Telemetry) -> None:
        """Learn what one replica serves."""
        report = rate.Report(telemetry.at_s, telemetry.finished_units_total, telemetry.queued_units)
        span, sample = rate.follow(self._spans.get(telemetry.consumer), report)
        self._spans[telemetry.consumer] = span
        if sample is not None:
            self._known = sensing.served(self._known, [sample], self._rules)

    def step(self, now_s: float) -> None:
        """One round."""
        current = self._fleet.wanted
        made = replicas.decide(self._sense(now_s), current, self._memory, self._limits, now_s)
        self._memory = made.memory
        if made.replicas != current:
            self._scale(made.replicas, now_s)

    def _sense(self, now_s: float) -> Load:
        appended: dict[str, int] = {}
        waits = [[0.0] * len(Tier) for _ in range(self._count)]
        waiting_records = 0
        for partition in self._partitions:
            lane = topic_of(partition.lane)
            appended[lane] = appended.get(lane, 0) + partition.appended_records
            if partition.appended_records:
                units = partition.last_units
                self._mean_units[lane] = rate.blend_cost(self._mean_units.get(lane), units)
            waits[partition.index][_TIERS.index(partition.lane.tier)] += sum(
                job.ask.cost_units for job in partition.waiting
            )
            waiting_records += len(partition.waiting)
        held_units = self._scene.held_units()
        reading = rate.Reading(appended, self._mean_units, sum(held_units), 0.0)
        known = self._known = sensing.arrived(self._known, reading, self._rules, now_s)
        ready = [one for one in self._fleet.members if one.state == "ready"]
        running_units = sum(one.held.cost_units for one in self._fleet.members)
        return Load(
            lag_records=waiting_records + sum(one.running for one in self._fleet.members),
            waits=sensing.with_held([tuple(by_tier) for by_tier in waits], held_units),
            arrival_units_per_s=known.arrivals.units_per_s if known.arrivals else 0.0,
            replica_units_per_s=known.service.units_per_s,
            forecast_units_per_s=known.forecast_units_per_s,
            ready=len(ready),
            running_units=running_units,
            held_units=sum(held_units),
            is_moving=self._has_moved(),
        )

    def _has_moved(self) -> bool:
        owners = [part.owner.name if isinstance(part.owner, Consumer) else None for part in self._partitions]
        before, self._owners = self._owners, owners
        return before not in ([], owners)


@dataclass(frozen=True, slots=True)
class Scene:
    """What a scaler looks at."""

    partitions: Sequence[Partition]
    fleet: "Crew"
    held_units: Callable[[], Waits]
    """What waits before the lanes for room on them."""


class Crew:
    """The consumers of a fleet that grows and shrinks: who is ordered, ready, draining, and for how long held."""

    def __init__(self, hire: Callable[[int], Consumer]) -> None:
        """`hire` makes the consumer of a number."""
        self._hire = hire
        self.members: list[Consumer] = []
        self.held: list[tuple[float, int]] = []
        """Seconds, and engines held from then on."""
        self.orders: list[tuple[float, int]] = []
        """Seconds, and engines wanted from then on."""
        self._numbers = 0

    def order(self, count: int, now_s: float) -> list[Consumer]:
        """More consumers, which start now and are not ready yet."""
        new = [self._hire(self._numbers + number) for number in range(count)]
        self._numbers += count
        for consumer in new:
            consumer.state = "starting"
        self.members += new
        self._note(now_s)
        self.orders.append((now_s, self.wanted))
        return new

    def dismiss(self, count: int, now_s: float) -> list[Consumer]:
        """So many of those that hold the least stop taking work."""
        staying = [member for member in self.members if member.state != "draining"]
        going = sorted(staying, key=lambda member: (member.state == "ready", member.held.cost_units))[:count]
        for consumer in going:
            consumer.state = "draining"
        self.orders.append((now_s, self.wanted))
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
