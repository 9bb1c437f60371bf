"""What is known of a pool's rates, from reading to reading.  Pure; time is an argument."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from autoscaler.policy import forecast, rate
from autoscaler.policy.demand import Waits
from autoscaler.policy.forecast import History, Point


@dataclass(frozen=True, slots=True)
class Rules:
    """How rates are learnt."""

    nominal_units_per_s: float
    arrival_memory_s: float
    forecast_window_s: float
    cold_start_s: float


@dataclass(frozen=True, slots=True)
class Known:
    """Rates of a pool."""

    service: rate.ServiceRate
    arrivals: rate.Arrivals | None = None
    history: History = field(default_factory=History)
    forecast_units_per_s: float | None = None


def nothing(rules: Rules) -> Known:
    """What is known before anything was read."""
    return Known(rate.ServiceRate(rules.nominal_units_per_s))


def served(known: Known, rates_units_per_s: Iterable[float], rules: Rules) -> Known:
    """Take in what single replicas were measured to serve."""
    service = known.service
    for sample in rates_units_per_s:
        service = rate.learn(service, sample, rules.nominal_units_per_s)
    return replace(known, service=service)


def arrived(known: Known, reading: rate.Reading, rules: Rules, now_s: float) -> Known:
    """Take in how far the work has come now, and look ahead for the time in which a new replica would start."""
    arrivals = rate.arrivals(known.arrivals, reading, rules.arrival_memory_s, now_s)
    history = known.history
    last, sample = known.arrivals, arrivals.sample_units_per_s
    if last is not None and arrivals is not last and sample is not None:
        history = forecast.remember(history, Point(now_s, sample, now_s - last.at_s), rules.forecast_window_s)
    ahead = forecast.mean_ahead(history, rules.cold_start_s, arrivals.units_per_s)
    return replace(known, arrivals=arrivals, history=history, forecast_units_per_s=ahead)


def with_held(waits: Sequence[Waits], held_units: Waits) -> tuple[Waits, ...]:
    """What waits, with what waits before the lanes spread evenly over the partitions, as placement will."""
    count = max(1, len(waits))
    return tuple(
        tuple(round(units + held / count, 3) for units, held in zip(by_tier, held_units, strict=True))
        for by_tier in waits
    )


def without_running(units: Sequence[Waits], running_units: float) -> tuple[Waits, ...]:
    """What of the unfinished waits still, three decimals: running work is taken off evenly, wherever it is."""
    total = sum(map(sum, units))
    ratio = max(0.0, 1 - running_units / total) if total else 0.0
    return tuple(tuple(round(each * ratio, 3) for each in by_tier) for by_tier in units)
