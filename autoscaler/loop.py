"""Sense, decide, act: once a period, for each pool."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from autoscaler.backlog import Backlog
from autoscaler.fleet import Fleet
from autoscaler.metrics import Metrics
from autoscaler.policy import evidence, rate, replicas
from autoscaler.policy.evidence import Field
from autoscaler.policy.replicas import Decision, Limits, Load, Memory
from autoscaler.settings import AutoscalerSettings
from autoscaler.target import ScaleTarget
from topics import records
from topics.clock import Clock
from topics.errors import LagUnavailable

log = structlog.get_logger()


class BacklogSource(Protocol):
    """Where backlogs come from."""

    def read(self, pool: str) -> Backlog:
        """Read a pool completely, or raise LagUnavailable."""


class FleetSource(Protocol):
    """Where the state of the consumers comes from."""

    def read(self) -> Mapping[str, Fleet]:
        """Sum up by pool, or raise LagUnavailable."""


@dataclass(frozen=True, slots=True)
class Ports:
    """What the loop reads from and acts on."""

    backlogs: BacklogSource
    fleets: FleetSource
    target: ScaleTarget
    publish: Callable[[records.Decision], None]


@dataclass(slots=True)
class _Pool:
    """What is remembered of a pool from round to round.  Written only by the loop."""

    limits: Limits
    service: rate.ServiceRate
    arrivals: rate.Arrivals | None = None
    memory: Memory = field(default_factory=Memory)
    last: Decision | None = None
    complaint: str | None = "no reading yet"


class Loop:
    """Sizes the configured pools.  For one thread; `complaint` and `silent_s` may be asked from another."""

    def __init__(self, settings: AutoscalerSettings, clock: Clock, ports: Ports, metrics: Metrics) -> None:
        self._settings, self._clock, self._ports, self._metrics = settings, clock, ports, metrics
        nominal = rate.ServiceRate(settings.autoscaler.nominal_units_per_s)
        self._pools = {name: _Pool(settings.limits(name), nominal) for name in settings.autoscaler.scaled}
        self._settings_hash = settings.short_hash()
        self._round_s = clock.mono_s()
        self._is_telemetry_away = False

    def run(self, stop: threading.Event) -> None:
        """Make a round each period until told to stop; a slow round delays the next one and no more."""
        for name, pool in self._pools.items():
            # The minimum needs no reading and may start slowly; of what runs already nothing ends without one.
            self._ports.target.scale(name, max(pool.limits.min_replicas, self._ports.target.replicas(name)))
        while not stop.is_set():
            started_s = self._clock.mono_s()
            self.make_round()
            self._round_s = self._clock.mono_s()
            elapsed_s = self._round_s - started_s
            self._metrics.rounds.observe(elapsed_s)
            stop.wait(max(0.0, self._settings.autoscaler.period_s - elapsed_s))

    def make_round(self) -> None:
        """Sense, decide, act, for each pool; what could not be read stops no other pool."""
        fleets = self._read_fleets()
        for name, pool in self._pools.items():
            # 1. Sense
            fleet = fleets.get(name, Fleet())
            load = self._sense(name, pool, fleet)
            if (problem := self._ports.target.problem(name)) is not None:
                load, pool.complaint = None, problem
            # 2. Decide
            current = self._ports.target.replicas(name)
            now_s = self._clock.mono_s()
            made = replicas.decide(load, current, pool.memory, pool.limits, now_s)
            # 3. Act
            self._ports.target.scale(name, made.replicas)
            # 4. Tell
            self._metrics.show_decision(name, made)
            if replicas.is_news(pool.last, made, current):
                looked_at = evidence.of(load, current, pool.memory, pool.limits, now_s)
                looked_at |= {
                    "ready": fleet.ready,
                    "is_rate_measured": pool.service.is_measured,
                    "problem": pool.complaint,
                }
                self._tell(name, made, evidence.verdict(made, current), looked_at)
            pool.memory, pool.last = made.memory, made

    def complaint(self) -> str | None:
        """What is missing for a sound decision, or None."""
        missing = [f"{name}: {pool.complaint}" for name, pool in self._pools.items() if pool.complaint]
        return "; ".join(missing) or None

    def silent_s(self) -> float:
        """Time since the last round ended."""
        return self._clock.mono_s() - self._round_s

    def _read_fleets(self) -> Mapping[str, Fleet]:
        """Without telemetry nobody counts as ready and nothing as running: the larger answer, not a failure."""
        try:
            fleets = self._ports.fleets.read()
        except LagUnavailable as error:
            if not self._is_telemetry_away:
                log.warning("telemetry_unavailable", problem=str(error))
            self._is_telemetry_away = True
            return {}
        self._is_telemetry_away = False
        return fleets

    def _sense(self, name: str, pool: _Pool, fleet: Fleet) -> Load | None:
        scaling = self._settings.autoscaler
        for sample in fleet.rates_units_per_s:
            pool.service = rate.learn(pool.service, sample, scaling.nominal_units_per_s)
        try:
            backlog = self._ports.backlogs.read(name)
        except LagUnavailable as error:
            pool.complaint = str(error)
            self._metrics.show_blindness(name)
            return None
        pool.complaint = None
        pool.arrivals = rate.arrivals(
            pool.arrivals,
            {lane.topic: lane.appended_records for lane in backlog.lanes},
            {lane.topic: lane.mean_units for lane in backlog.lanes if lane.mean_units is not None},
            scaling.arrival_memory_s,
            self._clock.mono_s(),
        )
        load = Load(
            lag_records=backlog.lag_records,
            waiting_units=_rounded(max(0.0, backlog.cost_units - fleet.running_units)),
            arrival_units_per_s=_rounded(pool.arrivals.units_per_s),
            replica_units_per_s=pool.service.units_per_s,
        )
        self._metrics.show_backlog(backlog, self._clock.wall_s())
        self._metrics.show_load(name, load, fleet.ready, backlog.cost_units, is_measured=pool.service.is_measured)
        return load

    def _tell(self, name: str, made: Decision, verdict: str, looked_at: Mapping[str, Field]) -> None:
        told = {"policy_version": evidence.POLICY_VERSION, **looked_at, **evidence.of_made(made)}
        inputs: dict[str, Field] = {field: value for field, value in told.items() if value is not None}
        log.info("scale_decision", pool=name, verdict=verdict, reason=str(made.reason), **inputs)
        self._ports.publish(
            records.Decision(
                id=name,
                stage="scale",
                verdict=verdict,
                reason=made.reason,
                at_s=self._clock.wall_s(),
                by="autoscaler",
                inputs=inputs,
                settings_hash=self._settings_hash,
            )
        )


def _rounded(number: float) -> float:
    """Three decimals are enough for people, and keep the log small; decided is on what is logged."""
    return round(number, 3)
