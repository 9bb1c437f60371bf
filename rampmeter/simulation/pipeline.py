"""Ours: admission, placement on partitioned lanes, consumers, promotion; each decided by the modules of production."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gpu_consumers.engines.iteration_model import Event, Mark
from gpu_consumers.policy.selection import LANES, Lane
from rampmeter.simulation.admitting import Admission
from rampmeter.simulation.consumer import Consumer, Terms, topic_of
from rampmeter.simulation.jobs import Job
from rampmeter.simulation.lanes import Partition, ranges
from rampmeter.simulation.ledger import Ledger, LimitOf, unbound
from rampmeter.simulation.promotion import Promoter
from rampmeter.simulation.rival_scalers import scaler_of
from rampmeter.simulation.scaling import Crew, Scaling, Scene
from rampmeter.simulation.stations import Station
from rampmeter.simulation.timeline import Timeline
from streams.fleet import Fleet
from streams.settings import StreamsSettings
from topics.records import Length, Tier
from topics.settings import Pool

HOP_S = 0.010
"""From a landing topic through admission and a lane to the engine's door while little is going on, measured."""
TELEMETRY_S = 0.5
REBALANCE_S = 2.0
"""For which a partition that changes its owner is served by nobody."""


class VirtualClock:
    """Satisfies `topics.clock.Clock` for the parts of production that ask for one."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wall_s(self) -> float:
        """Simulated seconds."""
        return self.now_s

    def mono_s(self) -> float:
        """The same."""
        return self.now_s


@dataclass(frozen=True, slots=True)
class Site:
    """How large it is; `seed` is that of placement's draws."""

    engines: int
    partitions: int
    seed: int = 1
    limit_of: LimitOf = unbound
    scaling: Scaling | None = None
    defers: bool = False
    """Long waits before a lane have the delays of the topics; else they end as soon as there is room."""


class Pipeline:
    """One pool in virtual time."""

    hop_s = HOP_S

    def __init__(self, timeline: Timeline, settings: StreamsSettings, terms: Terms, site: Site) -> None:
        self._timeline, self._terms = timeline, terms
        self._clock = VirtualClock()
        self.fleet = Fleet(settings, self._clock, random.Random(site.seed).random)
        self._lanes = {topic_of(lane): [Partition(lane, index) for index in range(site.partitions)] for lane in LANES}
        pool = settings.pools[terms.pool]
        ledger = Ledger(_weights(pool), settings.streams.fair.half_life_s, site.limit_of)
        self.admission = Admission(timeline, settings, ledger, self._place, defers=site.defers)
        every = [partition for partitions in self._lanes.values() for partition in partitions]
        self._promoter = Promoter(settings, terms.pool, self.fleet, every, self._copy)
        self.crew = Crew(lambda number: Consumer(number, terms, self._shed))
        self.stations: list[Station] = []
        scaling = site.scaling
        self._scaler = (
            None
            if scaling is None
            else scaler_of(
                scaling, Scene(every, self.crew, self.admission.held_units, self.admission.held_requests), self._scale
            )
        )
        self._cold_s = 0.0 if scaling is None else scaling.cold_s
        for consumer in self.crew.order(site.engines, 0.0):
            self._begin(consumer, TELEMETRY_S * consumer.number / site.engines)
        self._deal(0.0)
        timeline.every(settings.streams.promote_every_s, self._promote)
        if self._scaler is not None:
            timeline.every(self._scaler.period_s, self._scaler.step)

    def arrive(self, job: Job, now_s: float) -> None:
        """See `Discipline`."""
        self._clock.now_s = now_s
        self.admission.arrive(job, now_s)

    def refill(self, station: Station, events: Sequence[Event], now_s: float) -> None:
        """See `Discipline`."""
        assert isinstance(station, Consumer)  # noqa: S101 - there are no others here
        self._clock.now_s = now_s
        for event in events:
            job = event.sequence
            assert isinstance(job, Job)  # noqa: S101 - nothing else was added
            station.note_end(job, event.mark)
            if event.mark is Mark.FINISHED:
                self.admission.end(job, now_s)
        station.refill(now_s)
        if station.state == "draining":
            self._let_go(now_s)

    def _scale(self, count: int, now_s: float) -> None:
        """See `Scaler`."""
        missing = count - self.crew.wanted
        if missing > 0:
            for consumer in self.crew.order(missing, now_s):
                self._timeline.at(now_s + self._cold_s, partial(self._join, consumer))
        elif self.crew.dismiss(-missing, now_s):
            self._rebalance(now_s)

    def _join(self, consumer: Consumer, now_s: float) -> None:
        if consumer.state == "starting":  # it may have been dismissed meanwhile
            self._begin(consumer, now_s)
            self._rebalance(now_s)

    def _begin(self, consumer: Consumer, first_s: float) -> None:
        consumer.state = "ready"
        self.stations.append(consumer)
        self._follow(consumer, first_s)

    def _rebalance(self, now_s: float) -> None:
        """What changes its owner is served by nobody for a while; who leaves finishes what runs."""
        for partition, owner in self._owners():
            if partition.owner is not owner:
                partition.owner = None
        for consumer in self.crew.members:
            consumer.own([partition for partition, _ in self._owners() if partition.owner is consumer])
        self._timeline.at(now_s + REBALANCE_S, self._deal)
        self._let_go(now_s)

    def _deal(self, now_s: float) -> None:
        """Deal the partitions out to the consumers that are ready, by range."""
        owned: dict[str, list[Partition]] = {consumer.name: [] for consumer in self.crew.members}
        for partition, owner in self._owners():
            owned[owner.name].append(partition)
        for consumer in self.crew.members:
            consumer.own(owned[consumer.name])
            consumer.refill(now_s)

    def _owners(self) -> Iterator[tuple[Partition, Consumer]]:
        members = sorted((one for one in self.crew.members if one.state == "ready"), key=lambda one: one.name)
        for partitions in self._lanes.values():
            for consumer, indexes in zip(members, ranges(len(partitions), len(members)), strict=True):
                for index in indexes:
                    yield partitions[index], consumer

    def _let_go(self, now_s: float) -> None:
        if self.crew.let_go(now_s):
            self.stations[:] = [one for one in self.stations if one in self.crew.members]

    def _place(self, job: Job, now_s: float) -> None:
        self._clock.now_s = now_s
        lane, _ = job.asked.flow
        self._append(self._spot(lane, job), job, now_s)

    def _copy(self, job: Job, original: Partition, now_s: float) -> None:
        spot = self._spot(topic_of(Lane(Tier.AGED, job.asked.length)), job)
        job.copies = (original, spot)
        self._append(spot, job, now_s)

    def _spot(self, lane: str, job: Job) -> Partition:
        partitions = self._lanes[lane]
        return partitions[self.fleet.place(lane, len(partitions), job.ask.cost_units).partition]

    def _append(self, spot: Partition, job: Job, now_s: float) -> None:
        spot.append(job)
        if isinstance(spot.owner, Consumer):
            spot.owner.refill(now_s)

    def _promote(self, now_s: float) -> None:
        self._clock.now_s = now_s
        self._promoter.step(now_s)

    def _shed(self, job: Job, now_s: float) -> None:
        self.admission.end(job, now_s)
        self._timeline.shed(job, now_s)

    def _follow(self, consumer: Consumer, first_s: float) -> None:
        def report(now_s: float) -> None:
            self._clock.now_s = now_s
            if consumer not in self.crew.members:
                return
            telemetry = consumer.report(now_s)
            self.fleet.note(telemetry)
            if self._scaler is not None:
                self._scaler.note(telemetry)
            self.admission.capacity = self.fleet.capacity(self._terms.pool)

        self._timeline.every(TELEMETRY_S, report, first_s)


def _weights(pool: Pool) -> dict[str, float]:
    tiers = {"high": pool.high_weight, "medium": pool.medium_weight, "low": pool.low_weight}
    lengths = {Length.SHORT: pool.short_weight, Length.LONG: pool.long_weight}
    return {f"{tier}.{length}": tiers[tier] * lengths[length] for tier in tiers for length in lengths}
