"""What ours is compared with.  Each gets a perfect shared queue, which no topic with partitions has."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_consumers.engines.iteration_model import Event
from gpu_consumers.policy.batching import Limits
from gpu_consumers.policy.expiry import UNLIMITED, StartLimits
from rampmeter.simulation.jobs import Job
from rampmeter.simulation.stations import Station
from rampmeter.simulation.timeline import Timeline
from topics.records import Length

HOP_S = 0.004
"""A record through one topic of an unloaded broker, measured."""
_UNBOUND = 10**9
START_RATIO = 0.9
"""Who refuses begins nothing later than this share of the SLO, as `gpu.short_start_s` advises: the rest is for the
prompt."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Longest time to the first token that is still good, by class."""

    short_s: float = 2.0
    long_s: float = 30.0

    def of(self, length: Length) -> float:
        """That of a class."""
        return self.short_s if length is Length.SHORT else self.long_s

    def start_limits(self) -> StartLimits:
        """What may still begin, for whoever refuses."""
        return StartLimits(START_RATIO * self.short_s, START_RATIO * self.long_s)


Key = Callable[[Job], float]
"""The order of a queue, least first."""


def by_arrival(job: Job) -> float:
    """First come, first served."""
    return float(job.asked.number)


def by_class(job: Job) -> float:
    """All shorts before any long."""
    return job.asked.number + _UNBOUND * job.is_long


def by_true_cost(job: Job) -> float:
    """Cheapest first, known by an oracle: tokens as an engine at saturation feels them."""
    return job.prompt_tokens * 0.067 + job.output_tokens * 0.27


class SharedQueue:
    """One queue that every engine with room takes from."""

    hop_s = HOP_S

    def __init__(self, timeline: Timeline, stations: list[Station], key: Key, shed: StartLimits = UNLIMITED) -> None:
        """`shed`: what waited longer than this is dropped when its turn comes."""
        self.stations = stations
        self._timeline, self._key, self._shed = timeline, key, shed
        self._waiting: list[tuple[float, int, Job]] = []

    def arrive(self, job: Job, now_s: float) -> None:
        """Queue it; the engine with the fewest jobs looks first."""
        heapq.heappush(self._waiting, (self._key(job), job.asked.number, job))
        self.refill(min(self.stations, key=_sequences), (), now_s)

    def refill(self, station: Station, events: Sequence[Event], now_s: float) -> None:  # noqa: ARG002 - the protocol's
        """Hand over from the front while there is room."""
        waiting, shed = self._waiting, self._shed
        while waiting:
            job = waiting[0][2]
            limit_s = shed.of(job.asked.length)
            if limit_s is not None and now_s - job.arrived_s > limit_s:
                heapq.heappop(waiting)
                self._timeline.shed(job, now_s)
            elif station.has_room(job.ask):
                heapq.heappop(waiting)
                station.enter(job, 0, now_s)
            else:
                break


class SplitPools:
    """Some engines for shorts, the others for longs, and no borrowing."""

    hop_s = HOP_S

    def __init__(self, timeline: Timeline, stations: list[Station], shorts: int) -> None:
        """The first `shorts` engines serve shorts."""
        self.stations = stations
        self._shorts = SharedQueue(timeline, stations[:shorts], by_arrival)
        self._longs = SharedQueue(timeline, stations[shorts:], by_arrival)

    def arrive(self, job: Job, now_s: float) -> None:
        """To the pool of its class."""
        (self._longs if job.is_long else self._shorts).arrive(job, now_s)

    def refill(self, station: Station, events: Sequence[Event], now_s: float) -> None:
        """From the pool that it belongs to."""
        (self._shorts if station in self._shorts.stations else self._longs).refill(station, events, now_s)


class EnginePriority:
    """All is pushed to the engine with the least, and the engine's own scheduler puts shorts first."""

    hop_s = 0.0

    def __init__(self, stations: list[Station]) -> None:
        self.stations = stations
        for station in stations:
            station.limits = Limits(_UNBOUND, None, None)

    def arrive(self, job: Job, now_s: float) -> None:
        """Straight into an engine."""
        min(self.stations, key=_units).enter(job, int(job.is_long), now_s)

    def refill(self, station: Station, events: Sequence[Event], now_s: float) -> None:
        """Nothing waits outside."""


def _sequences(station: Station) -> int:
    return station.held.sequences


def _units(station: Station) -> float:
    return station.held.cost_units
