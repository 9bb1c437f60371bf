"""Virtual time: arrivals, engines and timers in order.  Nothing here waits, and nothing is left to chance."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Protocol

from gpu_consumers.engines.iteration_model import Event, Mark
from rampmeter.simulation.jobs import NEVER_S, Asked, Fate, Job
from rampmeter.simulation.stations import Station


class Discipline(Protocol):
    """Who runs where and when: one of ours or a baseline."""

    hop_s: float
    """From a request's arrival until the discipline knows of it."""
    stations: list[Station]
    """Engines; it may change while time runs."""

    def arrive(self, job: Job, now_s: float) -> None:
        """Take a new request."""

    def refill(self, station: Station, events: Sequence[Event], now_s: float) -> None:
        """Something happened in an engine: give it what it has room for."""


class Timeline:
    """One run of all requests.  Invariant: time never goes back; at the end every job has its fate."""

    def __init__(self, asked: Iterable[Asked]) -> None:
        self.jobs = [Job(one) for one in asked]
        self.open = len(self.jobs)
        """Jobs without a fate."""
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()

    def at(self, at_s: float, action: Callable[[float], None]) -> None:
        """Have something done then."""
        heapq.heappush(self._timers, (at_s, next(self._order), action))

    def every(self, period_s: float, action: Callable[[float], None], first_s: float = 0.0) -> None:
        """Have something done again and again."""

        def act(now_s: float) -> None:
            action(now_s)
            self.at(now_s + period_s, act)

        self.at(first_s, act)

    def shed(self, job: Job, now_s: float) -> None:
        """End a job that was never begun."""
        job.fate, job.finished_s = Fate.SHED, now_s
        self.open -= 1

    def run(self, discipline: Discipline) -> None:
        """Run until every job has its fate."""
        jobs, timers, hop_s, following = self.jobs, self._timers, discipline.hop_s, 0
        arrival_s = jobs[0].arrived_s + hop_s if jobs else NEVER_S
        while self.open:
            station = _soonest(discipline.stations)
            timer_s = timers[0][0] if timers else NEVER_S
            if station.next_s <= arrival_s and station.next_s <= timer_s:
                now_s = station.next_s
                events = station.advance(now_s)
                for event in events:
                    self.open -= event.mark is Mark.FINISHED
                discipline.refill(station, events, now_s)
            elif arrival_s <= timer_s:
                discipline.arrive(jobs[following], arrival_s)
                following += 1
                arrival_s = jobs[following].arrived_s + hop_s if following < len(jobs) else NEVER_S
            else:
                _, _, action = heapq.heappop(timers)
                action(timer_s)


def _soonest(stations: Sequence[Station]) -> Station:
    """Whose next moment comes first.  Asked for at each step, and four times as fast as `min` with a key."""
    soonest = stations[0]
    for station in stations:
        if station.next_s < soonest.next_s:
            soonest = station
    return soonest
