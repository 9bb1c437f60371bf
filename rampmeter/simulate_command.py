"""`rampmeter simulate`: a trace under one policy, in virtual time."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpu_consumers.engines.iteration_model import PRESETS
from gpu_consumers.settings import GpuSettings
from rampmeter import workload
from rampmeter.output import Output
from rampmeter.simulation import report, scenario
from rampmeter.simulation.figures import Figures
from rampmeter.simulation.scenario import Fleet, Policy, Run
from rampmeter.simulation.stations import Machine
from streams.settings import StreamsSettings
from topics.clock import Clock
from topics.errors import ConfigError
from topics.settings import load


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for."""

    trace: Path | None
    policy: Policy
    load_ratio: float
    preset: str
    engines: int
    seed: int
    offset_ratio: float
    limit: int | None
    html: Path | None


def fleet(preset: str, engines: int, seed: int) -> Fleet:
    """Engines, with the settings in force."""
    if preset not in PRESETS:
        raise ConfigError([f"--engine {preset} is not known; known: {', '.join(PRESETS)}"])
    gpu = load(GpuSettings).gpu
    return Fleet(Machine(preset, gpu.window_requests), engines, load(StreamsSettings), gpu, seed=seed)


def run(options: Options, clock: Clock, output: Output) -> Figures:
    """Simulate, write the report if one was asked for, and return the figures."""
    rows = workload.read_trace(options.trace, options.limit) if options.trace else generated(options)
    made = fleet(options.preset, options.engines, options.seed)
    asked = scenario.priced(scenario.shifted(rows, options.offset_ratio), made.settings)
    saturation = scenario.saturation_per_s(asked, made)
    output.say(f"{len(asked)} requests; saturation {saturation:.2f} a second")
    started_s = clock.mono_s()
    found = scenario.run(asked, options.policy, options.load_ratio, made, saturation)
    took_s = clock.mono_s() - started_s
    output.say(f"simulated {len(found.jobs)} requests in {took_s:.2f} s, {len(found.jobs) / took_s:,.0f} a second")
    if options.html is not None:
        _write_report(options.html, found, asked, output)
    return found.figures()


def generated(options: Options) -> list[workload.Row]:
    """A load like the public traces, when none is named."""
    return workload.generate_count(options.limit or DEFAULT_ROWS, options.seed)


DEFAULT_ROWS = 20_000


def show(found: Figures, output: Output) -> None:
    """Print the result: one line of JSON, or a table."""
    if output.as_json:
        output.result(found)
        return
    plain = msgspec.to_builtins(found)
    rows = [(name, str(value)) for name, value in plain.items() if not isinstance(value, dict)]
    rows += [
        (f"{name} {key}", _said(value)) for name, values in plain.items() if isinstance(values, dict)
        for key, value in values.items()
    ]  # fmt: skip
    output.table(f"Simulated: {found.policy} at load {found.load:g}", ("", ""), rows)


def _said(value: object) -> str:
    return ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else str(value)


def _write_report(path: Path, found: Run, asked: scenario.Priced, output: Output) -> None:
    beside = [found]
    if found.policy != "fifo":
        beside.append(scenario.run(asked, "fifo", found.load_ratio, found.fleet, found.saturation_per_s))
    path.write_text(report.render(beside), encoding="utf-8")
    output.say(f"report: {path}")
