"""The demonstration: the whole pipeline under a load that makes it scale, reject, and serve in order."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rampmeter import client, load, private, results, shots
from rampmeter.load import Patience, Shot
from rampmeter.output import Output
from rampmeter.replay import SATURATION_PER_S
from rampmeter.stack import Plan, Running
from rampmeter.workload import CODE, CONV, Row, generate
from topics.clock import Clock
from topics.records import Chunk
from topics.settings import Settings

PRESET = "a100-8b"
SPEED = 10.0
MAX_REPLICAS = 3
CALM_LOAD = 0.4
BURST_LOAD = 2.2
"""Load in engines' worth of requests, before and after the burst, and in it."""
BURST_FROM, BURST_TO = 0.15, 0.45
"""The burst's place in the run, as shares of its length."""
NOISY_TENANT = "noisy"
NOISY_PER_S = 6.0
NOISY_UNITS_PER_S = 200.0
NOISY_BURST_S = 6.0
"""About two of its requests a second fit; the rest is deferred for a moment or rejected."""
SHRINK_WAIT_S = 12.0
LLAMA_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
MODEL = "smollm2-135m"
PROMPT = "Why do cars wait at a traffic light? Answer in one short sentence."


@dataclass(frozen=True, slots=True)
class Demo:
    """One demonstration of this many seconds of load."""

    seconds: float
    data_dir: Path
    seed: int = 1
    with_model: bool = True


def run(demo: Demo, clock: Clock, output: Output) -> results.Summary:
    """Start everything, load it, show what happened; return the result."""
    plan = Plan(demo.data_dir, env=_env(demo))
    with private.running(plan, clock, output.say) as made:
        planned = list(_shots(made.settings, demo))
        output.say(
            f"sending {len(planned)} requests in {demo.seconds:g} s to simulated GPUs ({PRESET}, {SPEED:g} times as "
            f"fast); a burst comes after {demo.seconds * BURST_FROM:.0f} s, and tenant {NOISY_TENANT!r} has a budget "
            "that is too small for it"
        )
        with output.progress("demo", len(planned)) as advance:
            observed = load.run(made.settings, planned, clock, advance, _patience(demo))
        found = results.summary(observed)
        _show(found, observed, output)
        if demo.with_model and not output.as_json:
            _ask_model(made, clock, output)
    return found


def _env(demo: Demo) -> dict[str, str]:
    calm_s = demo.seconds * (1 - BURST_TO)
    scaling = {
        "POOLS": json.dumps({"default": {"min_replicas": 1, "max_replicas": MAX_REPLICAS}}),
        "NOMINAL_UNITS_PER_S": 1000 * SPEED,
        "PERIOD_S": 0.5,
        "TARGET_DRAIN_S": 2.0,
        "ARRIVAL_MEMORY_S": 1.5,
        "UP_AFTER_S": 0.5,
        "DOWN_AFTER_S": max(1.5, calm_s / 4),
        "COOLDOWN_S": max(1.0, demo.seconds / 20),
    }
    return {
        "RAMPMETER_GPU__ENGINE": "simulated",
        "RAMPMETER_GPU__PRESET": PRESET,
        "RAMPMETER_GPU__SPEED": str(SPEED),
        "RAMPMETER_STREAMS__AGED_AFTER_S": str(30.0 / SPEED),
        "RAMPMETER_STREAMS__MAX_DEFERRAL_S": "2",
        "RAMPMETER_AUTOSCALER__LOG_DIR": str(demo.data_dir.resolve() / "logs"),
        **{f"RAMPMETER_AUTOSCALER__{name}": str(value) for name, value in scaling.items()},
        **private.unbound_budgets(),
        **private.tenant_budgets({NOISY_TENANT: NOISY_UNITS_PER_S}, NOISY_BURST_S),
    }


def _shots(settings: Settings, demo: Demo) -> list[Shot]:
    """The calm load all along, the burst, and the noisy tenant, by time."""
    burst_s = demo.seconds * (BURST_TO - BURST_FROM)
    calm = shots.of_rows(settings, _rows(CALM_LOAD, demo.seconds, 0.0, demo.seed))
    burst = shots.of_rows(settings, _rows(BURST_LOAD - CALM_LOAD, burst_s, demo.seconds * BURST_FROM, demo.seed + 1))
    noisy_rows = generate(demo.seconds, [replace(CONV, rate_per_s=NOISY_PER_S)], demo.seed + 2)
    noisy = shots.of_rows(settings, noisy_rows, tenant=NOISY_TENANT)
    return sorted([*calm, *burst, *noisy], key=lambda shot: shot.at_s)


def _rows(engines: float, seconds: float, start_s: float, seed: int) -> Sequence[Row]:
    """Both services' requests at this load, in wall seconds from `start_s`."""
    factor = engines * SATURATION_PER_S[PRESET] / (CONV.rate_per_s + CODE.rate_per_s)
    services = [replace(service, rate_per_s=service.rate_per_s * factor) for service in (CONV, CODE)]
    return [
        replace(row, arrival_s=start_s + row.arrival_s / SPEED) for row in generate(seconds * SPEED, services, seed)
    ]


def _patience(demo: Demo) -> Patience:
    return Patience(settle_s=1.0 if demo.seconds >= 15 else 0.5, shrink_s=SHRINK_WAIT_S)


def _show(found: results.Summary, observed: results.Observed, output: Output) -> None:
    waits = [a.retry_after_s for a in observed.answers.values() if a.retry_after_s is not None]
    rows = [(name, str(getattr(found, name))) for name in ("sent", "replied", "lost", "duplicates")]
    rows += [(f"  {outcome}", str(count)) for outcome, count in found.outcomes.items()]
    for name, figures in (("time to first token", found.ttft_s), ("time to the whole answer", found.e2e_s)):
        rows += [(f"{name}, {length}", _seconds(values)) for length, values in figures.items()]
    rows.append(("consumers at work", f"{found.replicas['min']} to {found.replicas['max']}"))
    if waits:
        rows.append(
            ("rejections that say when to retry", f"{len(waits)}, after {min(waits):.1f} to {max(waits):.1f} s")
        )
    output.table("What happened", ("", ""), rows)


def _seconds(figures: results.Spread) -> str:
    if figures["p50"] is None or figures["p99"] is None:
        return "none"
    return f"p50 {figures['p50']:.2f} s, p99 {figures['p99']:.2f} s"


def _ask_model(made: Running, clock: Clock, output: Output) -> None:
    """Stream a real model's answer through the reply topic."""
    output.say(f"starting the real model {MODEL} on the CPU")
    made.start_llama(LLAMA_TIMEOUT_S)
    ask = client.Ask([{"role": "user", "content": PROMPT}], model=MODEL, tenant="demo", max_tokens=60, stream=True)
    output.text(f"\n{MODEL} is asked: {PROMPT}\n> ", end="")
    with client.Client(made.settings, clock) as asking:
        for answer in asking.stream(ask, ANSWER_TIMEOUT_S):
            if isinstance(answer, Chunk):
                output.text(client.text_of(answer), end="")
            else:
                output.text(f"\n({answer.outcome}, {answer.tokens.output if answer.tokens else 'unknown'} tokens)")
