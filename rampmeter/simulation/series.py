"""Runs as series over simulated time, for plots.  Pure."""

from collections.abc import Sequence

from rampmeter.results import quantile
from rampmeter.simulation.baselines import Slo
from rampmeter.simulation.figures import is_good
from rampmeter.simulation.jobs import Job
from topics.records import Length

BINS = 120

Points = list[tuple[float, float]]
"""Seconds and value; a bin without any is left out."""


def step_s(jobs: Sequence[Job]) -> float:
    """Width of a bin: the whole run in so many."""
    return max(1e-9, max(job.finished_s for job in jobs) / BINS)


def wait(jobs: Sequence[Job], length: Length, width_s: float) -> Points:
    """Time to the first token at the 90th percentile, by time of arrival."""
    waits = _binned(
        [
            (j.arrived_s, j.first_token_s - j.arrived_s)
            for j in jobs
            if j.asked.length is length and j.first_token_s >= 0
        ],
        width_s,
    )
    return [(at_s, quantile(values, 0.9) or 0.0) for at_s, values in waits]


def goodput(jobs: Sequence[Job], slo: Slo, width_s: float) -> Points:
    """Part of the requests that arrived then whose first token came in time."""
    found = _binned([(job.arrived_s, float(is_good(job, slo))) for job in jobs], width_s)
    return [(at_s, sum(values) / len(values)) for at_s, values in found]


def backlog(jobs: Sequence[Job], length: Length, width_s: float) -> Points:
    """Requests that wait for an engine."""
    ends = sorted(j.started_s if j.started_s >= 0 else j.finished_s for j in jobs if j.asked.length is length)
    starts = sorted(job.arrived_s for job in jobs if job.asked.length is length)
    points: Points = []
    came = gone = 0
    for number in range(BINS + 1):
        at_s = number * width_s
        while came < len(starts) and starts[came] <= at_s:
            came += 1
        while gone < len(ends) and ends[gone] <= at_s:
            gone += 1
        points.append((at_s, float(came - gone)))
    return points


def _binned(samples: Sequence[tuple[float, float]], width_s: float) -> list[tuple[float, list[float]]]:
    bins: dict[int, list[float]] = {}
    for at_s, value in samples:
        bins.setdefault(int(at_s / width_s), []).append(value)
    return [((number + 0.5) * width_s, bins[number]) for number in sorted(bins)]
