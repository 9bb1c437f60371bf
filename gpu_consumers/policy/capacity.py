"""Capacity: what the engine does a second when it never lacks work, and what it holds then.  Pure.

Cost counts as it is done, token by token, and whole at the end: a wave of equal requests ends all at once, long ones
end minutes apart.  Only time in which work waited counts, after the first attempt, which may have met a cold engine.
"""

from dataclasses import dataclass, replace

from gpu_consumers.policy.batching import Ask

_EWMA_WEIGHT = 0.1
LEAST_S = 2.0
HALF_LIFE_S = 10.0
FASTEST = 4.0
"""A simulated engine shortens both at most so many times, since the looks at it are no closer."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How much must be seen, and how fast it fades; both in seconds in which work waited."""

    least_s: float = LEAST_S
    """Too small: a few requests make the figure.  Too large: the fleet is unknown for as long."""
    half_life_s: float = HALF_LIFE_S
    """Too small: the figure follows single requests.  Too large: it follows a change of the load late."""


@dataclass(frozen=True, slots=True)
class Interval:
    """What was seen between two looks."""

    took_s: float
    has_waited: bool
    """At every moment of it work waited for room in the engine."""
    done_units: float
    inside_units: float
    """Cost in the engine at its end."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Sums over the intervals that counted, faded by the half-life, but for `counted_s`."""

    counted_s: float = 0.0
    faded_s: float = 0.0
    done_units: float = 0.0
    inside_unit_s: float = 0.0


def rules(speed: float) -> Rules:
    """The rules for an engine whose time runs `speed` times as fast as the clock's."""
    times = min(max(1.0, speed), FASTEST)
    return Rules(LEAST_S / times, HALF_LIFE_S / times)


def done_units(ask: Ask, output_tokens: int) -> float:
    """How much of a running job's cost is done, once it has its first token: the prompt's, and what is generated."""
    expected_tokens = ask.expected_output_tokens or 1
    output_ratio = output_tokens / expected_tokens if output_tokens < expected_tokens else 1.0
    return ask.prompt_units + (ask.cost_units - ask.prompt_units) * output_ratio


def averaged(before: float | None, now: float) -> float:
    """A moving average after one value more; None before the first."""
    return now if before is None else before + _EWMA_WEIGHT * (now - before)


def look(seen: Seen, interval: Interval, rules: Rules) -> Seen:
    """Take one interval in."""
    if not interval.has_waited or interval.took_s <= 0:
        return seen
    kept_ratio = 0.5 ** (interval.took_s / rules.half_life_s)
    return replace(
        seen,
        counted_s=seen.counted_s + interval.took_s,
        faded_s=seen.faded_s * kept_ratio + interval.took_s,
        done_units=seen.done_units * kept_ratio + interval.done_units,
        inside_unit_s=seen.inside_unit_s * kept_ratio + interval.inside_units * interval.took_s,
    )


def units_per_s(seen: Seen, rules: Rules) -> float | None:
    """Cost done a second while work waited; None until that was seen for long enough."""
    return seen.done_units / seen.faded_s if seen.counted_s >= rules.least_s else None


def units(seen: Seen, rules: Rules) -> float | None:
    """Mean cost inside while work waited; None as above."""
    return seen.inside_unit_s / seen.faded_s if seen.counted_s >= rules.least_s else None
