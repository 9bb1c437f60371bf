"""Sense, decide, act: once a period, for each pool."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog

from autoscaler.admissions import Before
from autoscaler.backlog import Backlog
from autoscaler.fleet import Fleet
from autoscaler.metrics import Metrics
from autoscaler.policy import evidence, quota, rate, replicas, sensing
from autoscaler.policy.demand import Load
from autoscaler.policy.evidence import Field
from autoscaler.policy.replicas import Decision, Limits, Memory, Reason
from autoscaler.policy.sensing import Known
from autoscaler.settings import AutoscalerSettings
from autoscaler.target import ScaleTarget, Unstarted
from topics import records
from topics.clock import Clock
from topics.errors import LagUnavailable

log = structlog.get_logger()

SAID_AFTER_ROUNDS = 2
"""What could not be read in one round is no news: at a start nothing was read yet."""

_Read = TypeVar("_Read")


class BacklogSource(Protocol):
    """Where backlogs come from."""

    def read(self, pool: str) -> Backlog:
        """Read a pool completely, or raise LagUnavailable."""


class FleetSource(Protocol):
    """Where the state of the consumers comes from."""

    def read(self) -> Mapping[str, Fleet]:
        """Sum up by pool, or raise LagUnavailable."""


class AdmissionSource(Protocol):
    """Where it is known what waits before the lanes."""

    def read(self) -> Mapping[str, Before]:
        """Sum up by pool, or raise LagUnavailable."""


@dataclass(frozen=True, slots=True)
class Ports:
    """What the loop reads from and acts on."""

    backlogs: BacklogSource
    fleets: FleetSource
    admissions: AdmissionSource
    target: ScaleTarget
    publish: Callable[[records.Decision], None]


@dataclass(slots=True)
class _Pool:
    """What is remembered of a pool from round to round.  Written only by the loop."""

    limits: Limits
    known: Known
    memory: Memory = field(default_factory=Memory)
    last: Decision | None = None
    complaint: str | None = "no reading yet"


@dataclass(frozen=True, slots=True)
class _Turn:
    """One pool's part of a round."""

    load: Load | None
    current: int
    made: Decision
    now_s: float
    unstarted: Unstarted | None


class Loop:
    """Sizes the configured pools.  For one thread; `complaint` and `silent_s` may be asked from another."""

    def __init__(self, settings: AutoscalerSettings, clock: Clock, ports: Ports, metrics: Metrics) -> None:
        self._settings, self._clock, self._ports, self._metrics = settings, clock, ports, metrics
        self._rules = settings.autoscaler.sensing()
        self._pools = {
            name: _Pool(settings.limits(name), sensing.nothing(self._rules)) for name in settings.autoscaler.scaled
        }
        self._settings_hash = settings.short_hash()
        self._round_s = clock.mono_s()
        self._away: Counter[str] = Counter()

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
        # Without telemetry nothing counts as running and nothing is foreseen: the larger answer, no failure.
        fleets = self._read("telemetry", self._ports.fleets.read)
        admissions = self._read("admissions", self._ports.admissions.read)
        turns: dict[str, _Turn] = {}
        for name, pool in self._pools.items():
            # 1. Sense
            fleet = None if fleets is None else fleets.get(name, Fleet())
            before = None if admissions is None else admissions.get(name, Before())
            self._metrics.show_held(name, before)
            load = self._sense(name, pool, fleet, before)
            if (problem := self._ports.target.problem(name)) is not None:
                load, pool.complaint = None, problem
            unstarted = self._ports.target.unstarted(name)
            self._metrics.show_unstarted(name, unstarted)
            # 2. Decide
            current, now_s = self._ports.target.replicas(name), self._clock.mono_s()
            made = replicas.decide(load, current, pool.memory, pool.limits, now_s)
            turns[name] = _Turn(load, current, made, now_s, unstarted)
        granted = self._within_quota(turns)
        for name, turn in turns.items():
            pool = self._pools[name]
            made = replicas.within_quota(turn.made, turn.current, pool.memory, granted[name])
            # 3. Act
            self._ports.target.scale(name, made.replicas)
            # 4. Tell
            self._metrics.show_decision(name, made)
            if replicas.is_news(pool.last, made, turn.current):
                self._tell(name, pool, turn, made)
            pool.memory, pool.last = made.memory, made

    def complaint(self) -> str | None:
        """What is missing for a sound decision, or None."""
        missing = [f"{name}: {pool.complaint}" for name, pool in self._pools.items() if pool.complaint]
        return "; ".join(missing) or None

    def silent_s(self) -> float:
        """Time since the last round ended."""
        return self._clock.mono_s() - self._round_s

    def _within_quota(self, turns: Mapping[str, _Turn]) -> Mapping[str, int]:
        """What each pool may have of what all want."""
        scaling = self._settings.autoscaler
        if scaling.gpu_quota is None:
            return {name: turn.made.replicas for name, turn in turns.items()}
        asks = [
            quota.Ask(name, turn.made.replicas, pool.min_replicas, pool.gpus_per_replica, pool.priority)
            for name, turn in turns.items()
            for pool in [scaling.scaled[name]]
        ]
        return quota.share(asks, scaling.gpu_quota)

    def _read(self, what: str, read: Callable[[], Mapping[str, _Read]]) -> Mapping[str, _Read] | None:
        """What helps and need not be there; None while it cannot be read, which is said once."""
        try:
            found = read()
        except LagUnavailable as error:
            self._away[what] += 1
            if self._away[what] == SAID_AFTER_ROUNDS:
                log.warning("inputs_unavailable", what=what, problem=str(error))
            return None
        self._away.pop(what, None)
        return found

    def _sense(self, name: str, pool: _Pool, fleet: Fleet | None, before: Before | None) -> Load | None:
        if fleet is not None:
            pool.known = sensing.served(pool.known, fleet.rates_units_per_s, self._rules)
        try:
            backlog = self._ports.backlogs.read(name)
        except LagUnavailable as error:
            # The decision tells only of the first of them.
            if str(error) != pool.complaint:
                log.warning("lag_unavailable", pool=name, problem=str(error))
            pool.complaint = str(error)
            self._metrics.show_blindness(name)
            return None
        pool.complaint = None
        reading = rate.Reading(
            {lane.topic: lane.appended_records for lane in backlog.lanes},
            {lane.topic: lane.mean_units for lane in backlog.lanes if lane.mean_units is not None},
            None if before is None else sum(before.held_units),
            None if before is None else before.refused_units,
        )
        pool.known = sensing.arrived(pool.known, reading, self._rules, self._clock.mono_s())
        load = _load(backlog, fleet, before, pool.known)
        self._metrics.show_backlog(backlog, self._clock.wall_s())
        self._metrics.show_load(name, load, backlog.cost_units, is_measured=pool.known.service.is_measured)
        return load

    def _tell(self, name: str, pool: _Pool, turn: _Turn, made: Decision) -> None:
        verdict = evidence.verdict(made, turn.current)
        told = {
            "policy_version": evidence.POLICY_VERSION,
            **evidence.of(turn.load, turn.current, pool.memory, pool.limits, turn.now_s),
            "is_rate_measured": pool.known.service.is_measured,
            **_missing(turn.unstarted),
            "problem": pool.complaint,
            "granted_replicas": made.replicas if made.reason is Reason.AT_QUOTA else None,
            **evidence.of_made(made),
        }
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


def _missing(unstarted: Unstarted | None) -> dict[str, Field]:
    """What of the count does not run."""
    if unstarted is None:
        return {}
    return {"pending_pods": unstarted.pending, "unschedulable_pods": unstarted.unschedulable}


def _load(backlog: Backlog, fleet: Fleet | None, before: Before | None, known: Known) -> Load:
    """Three decimals are enough for people, and keep the log small; decided is on what is logged."""
    ahead = known.forecast_units_per_s
    on_lanes = sensing.without_running(backlog.units_by_place, fleet.running_units if fleet else 0.0)
    return Load(
        lag_records=backlog.lag_records,
        waits=sensing.with_held(on_lanes, (before or Before()).held_units),
        arrival_units_per_s=round(known.arrivals.units_per_s if known.arrivals else 0.0, 3),
        replica_units_per_s=known.service.units_per_s,
        forecast_units_per_s=None if ahead is None else round(ahead, 3),
        ready=None if fleet is None else fleet.ready,
        running_units=None if fleet is None else round(fleet.running_units, 3),
        held_units=None if before is None else round(sum(before.held_units), 3),
        oldest_age_s=round(backlog.oldest_age_s, 3),
        is_moving=fleet is not None and fleet.is_moving,
    )
