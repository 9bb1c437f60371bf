"""What is simulated: requests, load, engines, and under which policy."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, get_args

import msgspec

from gpu_consumers.policy import expiry
from gpu_consumers.policy.expiry import UNLIMITED
from gpu_consumers.settings import Gpu
from rampmeter import workload
from rampmeter.simulation import baselines, figures
from rampmeter.simulation.baselines import Slo
from rampmeter.simulation.consumer import Terms
from rampmeter.simulation.figures import Figures
from rampmeter.simulation.jobs import NEVER_S, Asked, Job
from rampmeter.simulation.ledger import LimitOf, unbound
from rampmeter.simulation.pipeline import Pipeline, Site
from rampmeter.simulation.pricing import MODEL, Pricing
from rampmeter.simulation.scaling import Crew, Scaling, engine_s
from rampmeter.simulation.stations import Machine, Station
from rampmeter.simulation.timeline import Discipline, Timeline
from rampmeter.workload import Row
from streams.policy.degrade import Limit
from streams.settings import StreamsSettings
from topics.records import Length, Priority

Policy = Literal[
    "ours", "ours-unshed", "fifo", "fifo-shed", "strict", "static-split", "engine-priority", "sjf-oracle", "limit"
]
POLICIES: tuple[Policy, ...] = get_args(Policy)
NO_LIMIT_S = 1e9
Priced = Sequence[Asked]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines, the same for every policy; and ours' settings."""

    machine: Machine = field(default_factory=Machine)
    engines: int = 4
    settings: StreamsSettings = field(default_factory=StreamsSettings)
    gpu: Gpu = field(default_factory=Gpu)
    slo: Slo = field(default_factory=Slo)
    seed: int = 1
    tenant_budget: Limit | None = None
    """Of each tenant, under ours; None never binds."""
    scaling: Scaling | None = None
    """Ours begins with `engines` and follows the load; None holds them."""


def priced(rows: Sequence[Row], settings: StreamsSettings) -> list[Asked]:
    """Rows as admission sees them: what each service declares is its mean output, never the row's own."""
    model = settings.models[MODEL]
    return Pricing(model, settings.streams, workload.mean_outputs(rows)).price(rows)


def paced(asked: Sequence[Asked], rate_per_s: float) -> list[Asked]:
    """The same requests from time 0, stretched so that they arrive at this mean rate."""
    arrivals = [one.work.request.arrived_s for one in asked]
    first_s, span_s = arrivals[0], arrivals[-1] - arrivals[0]
    factor = len(asked) / rate_per_s / span_s if span_s > 0 else 0.0
    return [_at(one, (at_s - first_s) * factor) for one, at_s in zip(asked, arrivals, strict=True)]


def shifted(rows: Sequence[Row], ratio: float) -> list[Row]:
    """The trace begun at this part of its time, its beginning put behind its end."""
    if not ratio:
        return list(rows)
    start_s, end_s = rows[0].arrival_s, rows[-1].arrival_s
    cut_s = start_s + ratio * (end_s - start_s)
    later = [row for row in rows if row.arrival_s >= cut_s]
    earlier = [replace(row, arrival_s=row.arrival_s + end_s - start_s) for row in rows if row.arrival_s < cut_s]
    return later + earlier


def saturation_per_s(asked: Sequence[Asked], fleet: Fleet) -> float:
    """Requests a second that the engines complete with the whole backlog present, in order of arrival."""
    jobs = _run([_at(one, 0.0) for one in asked], "fifo", fleet)[0].jobs
    return len(jobs) / max(job.finished_s for job in jobs)


def run(asked: Sequence[Asked], policy: Policy, load_ratio: float, fleet: Fleet, saturation: float) -> "Run":
    """Simulate requests, already priced, at a load."""
    paced_asked = paced(asked, load_ratio * saturation)
    timeline, crew = _run(paced_asked, policy, fleet)
    held, orders = ([(0.0, fleet.engines)],) * 2 if crew is None else (crew.held, crew.orders)
    return Run(timeline.jobs, policy, load_ratio, saturation, fleet, held, orders)


@dataclass(frozen=True, slots=True)
class Run:
    """One run and what it was."""

    jobs: Sequence[Job]
    policy: Policy
    load_ratio: float
    saturation_per_s: float
    fleet: Fleet
    held: Sequence[tuple[float, int]]
    """Seconds, and engines held from then on."""
    orders: Sequence[tuple[float, int]] = ()
    """Seconds, and engines wanted from then on."""

    @property
    def replicas_over_time(self) -> Sequence[tuple[float, float]]:
        """The same as a line for a plot."""
        end_s = max(job.finished_s for job in self.jobs)
        steps = [(at_s, count) for at_s, count in self.held if at_s < end_s]
        lines = [[(at_s, float(n)), (later_s, float(n))] for (at_s, n), (later_s, _) in pairwise([*steps, (end_s, 0)])]
        return [point for line in lines for point in line]

    def figures(self) -> Figures:
        """Its figures."""
        end_s = max((job.finished_s for job in self.jobs), default=0.0)
        counts = [count for _, count in self.held]
        return figures.of_run(
            self.jobs,
            self.fleet.slo,
            policy=self.policy,
            load=self.load_ratio,
            saturation_per_s=round(self.saturation_per_s, 3),
            engine_s=round(engine_s(self.held, end_s), 1),
            replicas={"min": min(counts), "max": max(counts)},
        )


def _run(asked: Sequence[Asked], policy: Policy, fleet: Fleet) -> tuple[Timeline, Crew | None]:
    if policy == "limit":
        asked = [one for one in asked if one.length is Length.SHORT]
    timeline = Timeline(asked)
    if policy == "ours":
        limits = fleet.slo.start_limits()
        for job in timeline.jobs:
            job.last_start_s = expiry.last_start_s(job.asked.work, limits) or NEVER_S
    discipline = _discipline(policy, timeline, fleet)
    timeline.run(discipline)
    return timeline, discipline.crew if isinstance(discipline, Pipeline) else None


def _discipline(policy: Policy, timeline: Timeline, fleet: Fleet) -> Discipline:
    if policy in {"ours", "ours-unshed"}:
        return _ours(timeline, fleet)
    stations = [Station(number, fleet.machine) for number in range(fleet.engines)]
    match policy:
        case "strict":
            return baselines.SharedQueue(timeline, stations, baselines.by_class)
        case "sjf-oracle":
            return baselines.SharedQueue(timeline, stations, baselines.by_true_cost)
        case "static-split":
            return baselines.SplitPools(timeline, stations, max(1, fleet.engines // 2))
        case "engine-priority":
            return baselines.EnginePriority(stations)
        case _:
            shed = fleet.slo.start_limits() if policy == "fifo-shed" else UNLIMITED
            return baselines.SharedQueue(timeline, stations, baselines.by_arrival, shed)


def _ours(timeline: Timeline, fleet: Fleet) -> Pipeline:
    gpu, settings = fleet.gpu, _unbound(fleet.settings)
    pool = settings.models[MODEL].pool
    terms = Terms(
        pool=pool,
        shares=gpu.shares(settings.pools[pool]),
        longs=gpu.longs(),
        machine=fleet.machine,
        prefill_tokens=gpu.prefill_limit_tokens,
        long_prefill_tokens=gpu.long_prefill_tokens,
    )
    most = fleet.engines if fleet.scaling is None else fleet.scaling.max_replicas
    partitions = max(most, settings.pools[pool].lane_partitions)
    return Pipeline(
        timeline, settings, terms, Site(fleet.engines, partitions, fleet.seed, _limits(fleet), fleet.scaling)
    )


def _limits(fleet: Fleet) -> LimitOf:
    budget = fleet.tenant_budget
    return unbound if budget is None else lambda level, _: budget if level == "tenant" else None


def _unbound(settings: StreamsSettings) -> StreamsSettings:
    """Nobody is refused for a predicted wait: what is compared is order, and deadlines."""
    streams = settings.streams.model_copy(update={"max_wait_s": dict.fromkeys(Priority, NO_LIMIT_S)})
    return settings.model_copy(update={"streams": streams})


def _at(one: Asked, arrived_s: float) -> Asked:
    request = msgspec.structs.replace(one.work.request, arrived_s=arrived_s)
    return msgspec.structs.replace(one, work=msgspec.structs.replace(one.work, request=request))
