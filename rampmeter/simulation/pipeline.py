"""Ours: admission, placement on partitioned lanes, consumers, promotion; each decided by the modules of production."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_consumers.engines.iteration_model import Event, Mark
from gpu_consumers.policy.selection import LANES, Lane
from rampmeter.simulation.admitting import Admission
from rampmeter.simulation.consumer import Consumer, Terms, topic_of
from rampmeter.simulation.jobs import Job
from rampmeter.simulation.lanes import Partition, ranges
from rampmeter.simulation.ledger import Ledger
from rampmeter.simulation.promotion import Promoter
from rampmeter.simulation.stations import Station
from rampmeter.simulation.timeline import Timeline
from streams.fleet import Fleet
from streams.settings import StreamsSettings
from topics.records import Length, Tier, Work
from topics.settings import Pool

HOP_S = 0.010
"""From a landing topic through admission and a lane to the engine's door while little is going on, measured."""
TELEMETRY_S = 0.5


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


class Pipeline:
    """One pool in virtual time."""

    hop_s = HOP_S

    def __init__(self, timeline: Timeline, settings: StreamsSettings, terms: Terms, site: Site) -> None:
        self._timeline, self._terms = timeline, terms
        self._clock = VirtualClock()
        self.fleet = Fleet(settings, self._clock, random.Random(site.seed).random)
        self._lanes = {lane: [Partition(lane, index) for index in range(site.partitions)] for lane in LANES}
        pool = settings.pools[terms.pool]
        self.admission = Admission(timeline, settings, Ledger(_weights(pool)), self._place)
        every = [partition for partitions in self._lanes.values() for partition in partitions]
        self._promoter = Promoter(settings, terms.pool, self.fleet, every, self._copy)
        self.consumers = [Consumer(number, terms, self._shed) for number in range(site.engines)]
        self.stations: list[Station] = [*self.consumers]
        self.assign()
        for number, consumer in enumerate(self.consumers):
            self._follow(consumer, TELEMETRY_S * number / site.engines)
        timeline.every(settings.streams.promote_every_s, self._promote)

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
                self.admission.end(job)
        station.refill(now_s)

    def assign(self) -> None:
        """Deal the partitions out to the consumers that are ready."""
        members = [consumer for consumer in self.consumers if consumer.state == "ready"]
        owned: dict[str, list[Partition]] = {consumer.name: [] for consumer in self.consumers}
        for partitions in self._lanes.values():
            for consumer, indexes in zip(members, ranges(len(partitions), len(members)), strict=True):
                owned[consumer.name] += [partitions[index] for index in indexes]
        for consumer in self.consumers:
            consumer.own(owned[consumer.name])

    def _place(self, job: Job, now_s: float) -> None:
        self._clock.now_s = now_s
        work = job.asked.work
        self._append(self._spot(work, Tier(work.request.priority)), job, now_s)

    def _copy(self, job: Job, original: Partition, now_s: float) -> None:
        spot = self._spot(job.asked.work, Tier.AGED)
        job.copies = (original, spot)
        self._append(spot, job, now_s)

    def _spot(self, work: Work, tier: Tier) -> Partition:
        lane = Lane(tier, work.price.length)
        partitions = self._lanes[lane]
        return partitions[self.fleet.place(topic_of(lane), len(partitions), work.price.cost_units)]

    def _append(self, spot: Partition, job: Job, now_s: float) -> None:
        spot.append(job)
        if isinstance(spot.owner, Consumer):
            spot.owner.refill(now_s)

    def _promote(self, now_s: float) -> None:
        self._clock.now_s = now_s
        self._promoter.step(now_s)

    def _shed(self, job: Job, now_s: float) -> None:
        self.admission.end(job)
        self._timeline.shed(job, now_s)

    def _follow(self, consumer: Consumer, first_s: float) -> None:
        def report(now_s: float) -> None:
            self._clock.now_s = now_s
            self.fleet.note(consumer.report(now_s))
            self.admission.capacity = self.fleet.capacity(self._terms.pool)

        self._timeline.every(TELEMETRY_S, report, first_s)


def _weights(pool: Pool) -> dict[str, float]:
    tiers = {"high": pool.high_weight, "medium": pool.medium_weight, "low": pool.low_weight}
    lengths = {Length.SHORT: pool.short_weight, Length.LONG: pool.long_weight}
    return {f"{tier}.{length}": tiers[tier] * lengths[length] for tier in tiers for length in lengths}
