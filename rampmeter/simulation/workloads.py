"""The benchmark's workloads beside a trace as it is: made from its rows, the same for the same seed."""

import random
from collections.abc import Sequence
from dataclasses import replace

from rampmeter.workload import Row

LONG_SHARE = 0.1
LONG_PROMPT_TOKENS = (10_000, 100_000)
TENANTS = 10
NOISY = "t0"


def poisson(rows: Sequence[Row], seed: int) -> list[Row]:
    """The same requests with exponential gaps: a control without bursts."""
    rng = random.Random(f"poisson/{seed}")
    now_s, made = 0.0, []
    for row in rows:
        now_s += rng.expovariate(1.0)
        made.append(replace(row, arrival_s=now_s))
    return made


def long_context(rows: Sequence[Row], seed: int) -> list[Row]:
    """A tenth of the requests with prompts of 10,000 to 100,000 tokens, evenly by their logarithm."""
    rng = random.Random(f"long/{seed}")
    low, high = LONG_PROMPT_TOKENS
    return [
        replace(row, input_tokens=round(low * (high / low) ** rng.random()), service=f"{row.service}-documents")
        if rng.random() < LONG_SHARE
        else row
        for row in rows
    ]


def tenants(rows: Sequence[Row], weights: Sequence[float], seed: int) -> list[Row]:
    """Poisson arrivals of as many tenants as weights, each with its part of them; `t0` is the first."""
    rng = random.Random(f"tenants/{seed}")
    names = [f"t{number}" for number in range(len(weights))]
    return [replace(row, tenant=rng.choices(names, weights)[0]) for row in poisson(rows, seed)]


def by_rate(rows: Sequence[Row], rates: Sequence[float], step_s: float, seed: int) -> list[Row]:
    """Requests at these rates a second, `step_s` each; the rows begin again if there are too few."""
    rng = random.Random(f"rate/{seed}")
    made: list[Row] = []
    now_s, most = 0.0, max(rates)
    while (now_s := now_s + rng.expovariate(most)) < step_s * len(rates):
        if rng.random() < rates[int(now_s / step_s)] / most:
            made.append(replace(rows[len(made) % len(rows)], arrival_s=now_s))
    return made


def without(rows: Sequence[Row], tenant: str) -> list[Row]:
    """The others' requests at the same times."""
    return [row for row in rows if row.tenant != tenant]
