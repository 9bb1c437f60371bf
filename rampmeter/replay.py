"""Replay a trace on a stack of its own with a fixed number of simulated engines, and measure.

All figures are in simulated seconds: wall seconds times the speed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import msgspec

from rampmeter import load, private, results, shots
from rampmeter.load import Action, Patience
from rampmeter.output import Output
from rampmeter.results import Observed
from rampmeter.stack import Plan, Running
from rampmeter.workload import Row, paced
from topics.clock import Clock

SATURATION_PER_S = {"a100-8b": 6.5}
"""Requests per simulated second that one engine of a preset completes with the backlog fully present, measured with
the Azure 2023 mix, 64 requests in flight and 2048 tokens an iteration.  Another mix has another saturation."""
AGED_AFTER_S = 30.0
PROMOTE_EVERY_S = 2.0
LEASE_S = 2.0
SESSION_TIMEOUT_S = 4.0
"""With chaos, both: short, so that the work of a killed process is soon taken over."""
CHAOS_SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Replay:
    """What to replay and how.  `load_ratio` is relative to the engines' saturation."""

    rows: Sequence[Row]
    load_ratio: float
    engines: int
    speed: float
    policy: str
    chaos: bool
    data_dir: Path
    preset: str = "a100-8b"
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables of its processes beside those of a replay."""

    @property
    def rate_per_s(self) -> float:
        """Arrivals per wall second."""
        return self.load_ratio * SATURATION_PER_S[self.preset] * self.engines * self.speed


class Replayed(results.Summary, frozen=True, kw_only=True):
    """The result and what it was measured under.  `sent_late_s` and `took_s` are wall seconds."""

    policy: str
    load: float
    engines: int
    speed: float
    crashes: int
    sent_late_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What one replay gave; `took_s` in wall seconds."""

    observed: Observed
    crashes: int
    took_s: float


def measure(replay: Replay, clock: Clock, output: Output) -> Measured:
    """Start the stack, replay, stop it."""
    rows = paced(replay.rows, replay.rate_per_s)
    plan = Plan(replay.data_dir, engines=replay.engines, env=_env(replay))
    with private.running(plan, clock, output.say) as made:
        output.say(
            f"replaying {len(rows)} requests in {rows[-1].arrival_s:.0f} s "
            f"({rows[-1].arrival_s * replay.speed:.0f} simulated), policy {replay.policy}"
        )
        steps = load.planned(shots.of_rows(made.settings, rows), _chaos(replay, made, rows[-1].arrival_s, output))
        patience = Patience(settle_s=CHAOS_SETTLE_S if replay.chaos else 1.0)
        started_s = clock.mono_s()
        with output.progress("replay", len(rows)) as advance:
            observed = load.run(made.settings, steps, clock, advance, patience)
        took_s = clock.mono_s() - started_s
        return Measured(observed, made.children.crashes(), took_s)


def run(replay: Replay, clock: Clock, output: Output) -> Replayed:
    """The result of a replay."""
    measured = measure(replay, clock, output)
    observed = measured.observed
    return Replayed(
        **msgspec.structs.asdict(results.summary(observed, replay.speed)),
        policy=replay.policy,
        load=replay.load_ratio,
        engines=replay.engines,
        speed=replay.speed,
        crashes=measured.crashes,
        sent_late_s=round(observed.late_s, 4),
        took_s=round(measured.took_s, 2),
    )


def _env(replay: Replay) -> dict[str, str]:
    env = {
        "RAMPMETER_GPU__ENGINE": "simulated",
        "RAMPMETER_GPU__PRESET": replay.preset,
        "RAMPMETER_GPU__SPEED": str(replay.speed),
        "RAMPMETER_STREAMS__POLICY": replay.policy,
        "RAMPMETER_STREAMS__AGED_AFTER_S": str(AGED_AFTER_S / replay.speed),
        "RAMPMETER_STREAMS__PROMOTE_EVERY_S": str(max(0.1, PROMOTE_EVERY_S / replay.speed)),
        **private.unbound_budgets(),
    }
    if replay.chaos:
        lease = {"LEASE_S": LEASE_S, "RENEW_S": LEASE_S / 4, "HELD_RETRY_S": LEASE_S / 8}
        env |= {f"RAMPMETER_GPU__{name}": str(value) for name, value in lease.items()}
        env["RAMPMETER_STREAMS__SESSION_TIMEOUT_S"] = str(SESSION_TIMEOUT_S)
    return {**env, **replay.env}


def _chaos(replay: Replay, made: Running, last_s: float, output: Output) -> Iterator[Action]:
    """Kill a consumer at a third of the run and a streams worker at two thirds."""
    if not replay.chaos:
        return

    def kill(name: str) -> None:
        output.say(f"chaos: kill -9 {name}")
        made.children.kill(name)

    yield Action(last_s / 3, lambda: kill("gpu-1"))
    yield Action(last_s * 2 / 3, lambda: kill("streams-1"))


def show(found: Replayed, output: Output) -> None:
    """Print the result: one line of JSON, or a table."""
    if output.as_json:
        output.result(found)
        return
    plain = msgspec.to_builtins(found)
    rows = [(name, str(value)) for name, value in plain.items() if not isinstance(value, dict)]
    for name in ("outcomes", "ttft_s", "e2e_s", "replicas"):
        rows += [(f"{name} {key}", str(value)) for key, value in plain[name].items()]
    output.table("Replay, in simulated seconds", ("", ""), rows)
