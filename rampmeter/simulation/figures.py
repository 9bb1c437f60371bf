"""Arithmetic of a simulated run's result.  Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from rampmeter.results import Spread, rounded, spread
from rampmeter.simulation.baselines import Slo
from rampmeter.simulation.jobs import Fate, Job
from streams.policy import fairness
from topics.records import Length

JAIN_WINDOW_S = 60.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One run.  Times in simulated seconds from a request's arrival, of those that completed."""

    policy: str
    load: float
    requests: int
    saturation_per_s: float
    """Requests a second that the fleet completes with the whole backlog present, in order of arrival."""
    duration_s: float
    """From the first arrival to the last."""
    makespan_s: float
    """From the first arrival to the last end."""
    ttft_s: dict[str, Spread]
    e2e_s: dict[str, Spread]
    max_wait_s: dict[str, float | None]
    """Longest time from arrival to engine."""
    goodput_ratio: float
    """Of all requests, those whose first token came in time; one that was shed is a miss."""
    goodput_by_class: dict[str, float | None]
    good_tokens_per_s: float
    tokens_per_s: float
    """Prompt and output of completed requests, over the makespan."""
    shed_ratio: float
    jain: float | None
    """Served cost of tenants that had work waiting, by window, the mean; None when never two had."""
    engine_s: float
    """Sum over engines of the time for which they were held."""
    replicas: dict[str, int]


def of_run(jobs: Sequence[Job], slo: Slo, **about: object) -> Figures:
    """The figures of all jobs of a run; `about` are the fields that say what was run."""
    done = [job for job in jobs if job.fate is Fate.COMPLETED]
    good = [job for job in done if is_good(job, slo)]
    makespan_s = max((job.finished_s for job in done), default=0.0)

    def rate(some: Iterable[Job]) -> float:
        return round(sum(job.prompt_tokens + job.output_tokens for job in some) / makespan_s, 1) if makespan_s else 0.0

    plain = {
        "requests": len(jobs),
        "duration_s": round(max((job.arrived_s for job in jobs), default=0.0), 3),
        "makespan_s": round(makespan_s, 3),
        "ttft_s": {n.value: spread([j.first_token_s - j.arrived_s for j in of_class(done, n)]) for n in Length},
        "e2e_s": {n.value: spread([j.finished_s - j.arrived_s for j in of_class(done, n)]) for n in Length},
        "max_wait_s": {
            n.value: rounded(max((j.started_s - j.arrived_s for j in of_class(done, n)), default=None)) for n in Length
        },
        "goodput_ratio": round(len(good) / len(jobs), 4) if jobs else 0.0,
        "goodput_by_class": {n.value: _share(of_class(good, n), of_class(jobs, n)) for n in Length},
        "good_tokens_per_s": rate(good),
        "tokens_per_s": rate(done),
        "shed_ratio": round(1 - len(done) / len(jobs), 4) if jobs else 0.0,
        "jain": jain(jobs),
    }
    return msgspec.convert({**plain, **about}, Figures)


def is_good(job: Job, slo: Slo) -> bool:
    """Whether its first token came in time."""
    return job.fate is Fate.COMPLETED and job.first_token_s - job.arrived_s <= slo.of(job.asked.length)


def of_class(jobs: Iterable[Job], length: Length) -> list[Job]:
    """Those of one class."""
    return [job for job in jobs if job.asked.length is length]


def jain(jobs: Sequence[Job], window_s: float = JAIN_WINDOW_S) -> float | None:
    """Mean over windows of Jain's index of what those tenants were served that had work waiting all through it."""
    ends = {job: job.started_s if job.started_s >= 0 else job.finished_s for job in jobs}
    windows = range(int(max(ends.values(), default=0.0) / window_s))
    waits: dict[str, list[tuple[float, float]]] = {}
    served: dict[tuple[str, int], float] = {}
    for job, end_s in ends.items():
        tenant = job.asked.work.request.tenant
        waits.setdefault(tenant, []).append((job.arrived_s, end_s))
        if job.started_s >= 0:
            key = tenant, int(job.started_s / window_s)
            served[key] = served.get(key, 0.0) + job.ask.cost_units
    busy = {tenant: _covered(intervals) for tenant, intervals in waits.items()}
    found = [
        index
        for window in windows
        if len(tenants := [t for t in busy if _covers(busy[t], window, window_s)]) > 1
        and (index := fairness.jain([served.get((t, window), 0.0) for t in tenants])) is not None
    ]
    if len(waits) == 1:
        return 1.0
    return round(sum(found) / len(found), 4) if found else None


def _covered(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Their union, in order."""
    union: list[tuple[float, float]] = []
    for start_s, end_s in sorted(intervals):
        if union and start_s <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end_s))
        else:
            union.append((start_s, end_s))
    return union


def _covers(union: Sequence[tuple[float, float]], window: int, window_s: float = JAIN_WINDOW_S) -> bool:
    return any(a <= window * window_s and (window + 1) * window_s <= b for a, b in union)


def _share(some: Sequence[Job], of: Sequence[Job]) -> float | None:
    return round(len(some) / len(of), 4) if of else None
