"""`rampmeter what-if`: logged requests through the simulator, under the settings of the log and under others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from autoscaler.settings import AutoscalerSettings
from gpu_consumers.engines.iteration_model import PRESETS
from gpu_consumers.policy import batching, expiry
from gpu_consumers.settings import Gpu, GpuSettings
from rampmeter import results
from rampmeter.hindsight import figures
from rampmeter.hindsight.figures import End, Figures
from rampmeter.hindsight.load import Load, Told
from rampmeter.output import Output
from rampmeter.simulation.baselines import Slo
from rampmeter.simulation.consumer import Terms
from rampmeter.simulation.jobs import NEVER_S, Asked, Fate, Job, flow_of
from rampmeter.simulation.pipeline import Pipeline, Site
from rampmeter.simulation.scaling import Scaling
from rampmeter.simulation.stations import Machine
from rampmeter.simulation.timeline import Timeline
from streams import limits, rules
from streams.policy import cost, length, pricing
from streams.policy.degrade import Limit
from streams.settings import StreamsSettings
from topics.errors import ConfigError
from topics.outcomes import Outcome
from topics.records import Work

SIMULATED = (
    "streams.*_budget*.refill_units_per_s", "streams.*_budget*.burst_s", "streams.*_budget*.paced", "streams.fair.*_s",
    "streams.placement.*_weight", "streams.max_wait_s*", "streams.max_deferral_s", "streams.length_mode",
    "streams.long_*", "streams.history.long_service_s", "streams.aged_*", "streams.promote_every_s",
    "streams.telemetry_stale_s", "topics.defer_delays_s", "pools.*.lane_partitions", "pools.*_weight",
    "pools.*.aged_ratio", "models.*", "gpu.preset", "gpu.speed", "gpu.window_requests", "gpu.*prefill*_tokens",
    "gpu.long_window_*ratio", "gpu.*_start_s",
)  # fmt: skip
"""Settings that the simulation follows; of any other it would say that it changes nothing."""
SCALED = (
    "autoscaler.pools.*_replicas", "autoscaler.period_s", "autoscaler.target_drain_*", "autoscaler.nominal_units_per_s",
    "autoscaler.arrival_memory_s", "autoscaler.*_after_s", "autoscaler.cooldown_s", "autoscaler.tolerance_replicas",
    "autoscaler.step_*_replicas", "autoscaler.cold_start_s", "autoscaler.forecast_window_s",
)  # fmt: skip
"""The same of those that count only while an autoscaler sizes the fleet."""


AllSettings = tuple[StreamsSettings, GpuSettings, AutoscalerSettings]


@dataclass(frozen=True, slots=True)
class Case:
    """What one simulation runs under."""

    streams: StreamsSettings
    gpu: Gpu
    replicas: int
    """At first, if an autoscaler follows the load."""
    pool: str
    scaling: Scaling | None = None
    seed: int = 1


class Error(msgspec.Struct, frozen=True):
    """How far the simulation under the logged settings is from what happened."""

    truth: float | None
    simulated: float | None
    ratio: float | None
    """Over the truth."""


class Answer(msgspec.Struct, frozen=True):
    """What happened, what the simulation makes of it, and what it makes of the change."""

    requests: int
    open: int
    unpriced: int
    guessed_outputs: int
    """Requests that never answered, so that their output is what was expected."""
    other_settings: int
    replicas: dict[str, int]
    is_scaled: bool
    """An autoscaler changes them, in the log and here."""
    idle_replicas: int
    """Of the changed ones, those beyond the lane partitions: they get no work."""
    changes: dict[str, Any]
    truth: Figures
    logged: Figures
    changed: Figures
    difference: dict[str, float | None]
    error: dict[str, Error]


def require_simulated(names: Iterable[str], *, is_scaled: bool) -> None:
    """Raise ConfigError with each setting that the simulation does not follow."""
    patterns = (*SIMULATED, *SCALED) if is_scaled else SIMULATED
    unknown = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in patterns)]
    if unknown:
        held = "" if is_scaled else "; no autoscaler changed this fleet"
        raise ConfigError(
            [
                f"--set {name}: the simulation does not follow this setting{held * name.startswith('autoscaler.')}"
                for name in unknown
            ]
        )


def case(load: Load, settings: AllSettings, pool: str, replicas: int | None) -> Case:
    """Under these settings, with so many replicas; None: as many as answered, or as the autoscaler wants if one did."""
    streams, gpu, scaler = settings
    _require_engine(gpu.gpu)
    if replicas is not None or not load.is_scaled:
        return Case(streams, gpu.gpu, replicas or max(1, load.replicas), pool)
    bounds = scaler.limits(pool)
    least = max(1, bounds.min_replicas)  # the simulated fleet does not disappear
    return Case(streams, gpu.gpu, least, pool, Scaling(least, bounds.max_replicas, settings=scaler.autoscaler))


def _require_engine(gpu: Gpu) -> None:
    problems = []
    if gpu.preset not in PRESETS:
        problems.append(f"gpu.preset {gpu.preset} is not known; known: {', '.join(PRESETS)}")
    if gpu.window_requests >= Machine().chunk_tokens:
        problems.append(
            f"gpu.window_requests {gpu.window_requests} is not below the {Machine().chunk_tokens} tokens of a step"
        )
    if problems:
        raise ConfigError(problems)


def run(load: Load, logged: Case, changed: Case, changes: Mapping[str, Any]) -> Answer:
    """Simulate both, and set them beside each other and beside the log."""
    slo = Slo()
    truth = figures.of([told.end for told in load.requests], slo)
    before = figures.of(simulate(load.requests, logged, logged.streams), slo)
    after = figures.of(simulate(load.requests, changed, logged.streams), slo)
    true, plain = figures.flat(truth), figures.flat(before)
    return Answer(
        requests=len(load.requests),
        open=load.open,
        unpriced=load.unpriced,
        guessed_outputs=sum(told.ran is None for told in load.requests),
        other_settings=load.other_settings,
        replicas={"logged": logged.replicas, "changed": changed.replicas},
        is_scaled=logged.scaling is not None,
        idle_replicas=max(0, changed.replicas - changed.streams.pools[changed.pool].lane_partitions),
        changes=dict(changes),
        truth=truth,
        logged=before,
        changed=after,
        difference=figures.differences(plain, figures.flat(after)),
        error={
            name: Error(true.get(name), plain.get(name), results.ratio(plain.get(name), true.get(name)))
            for name in dict.fromkeys([*true, *plain])
        },
    )


def simulate(requests: Sequence[Told], case: Case, then: StreamsSettings) -> list[End]:
    """How the requests end.  `then`: the settings that the logged coefficients belong to."""
    settings, gpu, pool = case.streams, case.gpu, case.pool
    section, start_s = settings.streams, requests[0].request.arrived_s
    recent = length.RecentCosts()
    asked = [_asked(number, told, case, then, recent, start_s) for number, told in enumerate(requests)]
    timeline = Timeline(asked)

    def limit_of(level: str, name: str) -> Limit:
        bucket = limits.configured(section, level, name)
        return Limit(bucket.refill_units_per_s, bucket.cap_units, bucket.paced)

    terms = Terms(
        pool=pool,
        shares=gpu.shares(settings.pools[pool]),
        longs=gpu.longs(),
        machine=Machine(gpu.preset, gpu.window_requests, speed=gpu.speed),
        prefill_tokens=gpu.prefill_limit_tokens,
        long_prefill_tokens=gpu.long_prefill_tokens,
    )
    site = Site(case.replicas, settings.pools[pool].lane_partitions, case.seed, limit_of, case.scaling, defers=True)
    timeline.run(Pipeline(timeline, settings, terms, site))
    return [_end(job) for job in timeline.jobs]


def _asked(
    number: int, told: Told, case: Case, then: StreamsSettings, recent: length.RecentCosts, start_s: float
) -> Asked:
    """A logged request under the settings of a case, from the moment at which the first one came."""
    request, settings, section = told.request, case.streams, case.streams.streams
    model = settings.models[request.model]
    request = msgspec.structs.replace(
        request,
        arrived_s=request.arrived_s - start_s,
        deadline_s=None if request.deadline_s is None else request.deadline_s - start_s,
    )
    coefficient = told.coefficient * model.coefficient / then.models[request.model].coefficient
    expected = cost.expect(request, model, told.known, coefficient)
    recent.add(expected.units)
    long_units = recent.quantile_units(section.long_cost_quantile) or section.long_cost_units
    price = pricing.decide(request, expected, case.pool, rules.of_pricing(section), long_units)
    work = Work(request=request, price=price)
    ran = told.ran
    prompt, output = (expected.prompt_tokens, expected.output_tokens) if ran is None else (ran.prompt, ran.output)
    return Asked(
        number,
        flow_of(work),
        work,
        batching.ask_of(work, model),
        output,
        expiry.last_start_s(work, case.gpu.start_limits()) or NEVER_S,
        prompt,
        model.units(prompt, output, cached=0 if ran is None else ran.cached, coefficient=coefficient),
    )


def _end(job: Job) -> End:
    work, is_done = job.asked.work, job.fate is Fate.COMPLETED
    return End(
        tenant=work.request.tenant,
        priority=work.request.priority,
        length=work.price.length,
        outcome=Outcome.COMPLETED if is_done else job.outcome,
        wait_s=job.started_s - job.arrived_s if job.started_s >= 0 else None,
        ttft_s=job.first_token_s - job.arrived_s if is_done else None,
        e2e_s=job.finished_s - job.arrived_s if is_done else None,
        cost_units=(job.asked.real_units or 0.0) if is_done else 0.0,
    )


def show(found: Answer, output: Output) -> None:
    """Print log, simulation, error, change and difference beside each other."""
    if found.other_settings:
        output.say(
            f"{found.other_settings} of these were decided under other settings than those of this command: give it"
            " the workers' RAMPMETER_CONFIG and variables"
        )
    if found.idle_replicas:
        output.say(f"{found.idle_replicas} replicas get no work: the pool has no more lane partitions")
    if output.as_json:
        output.result(found)
        return
    changed = figures.flat(found.changed)
    rows = [
        (
            name,
            results.shown(error.truth),
            results.shown(error.simulated),
            "-" if error.ratio is None else f"{error.ratio:+.0%}",
            results.shown(changed.get(name)),
            "-" if (more := found.difference.get(name)) is None else f"{more:+g}",
        )
        for name, error in found.error.items()
        if (error.truth, error.simulated, changed.get(name)) != (None, None, None)
    ]
    columns = ("", "log", "simulated", "error", "changed", "difference")
    output.table(f"What if, by {found.requests} requests", columns, rows)
    replicas = f"replicas{' at first' * found.is_scaled}: {found.replicas['logged']} and {found.replicas['changed']}"
    output.say(
        f"{replicas}; left out are {found.open} requests without an answer and {found.unpriced} of models that the"
        f" settings do not have; the output of {found.guessed_outputs} is what was expected"
    )
