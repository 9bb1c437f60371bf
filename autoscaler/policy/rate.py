"""Rates: how fast work arrives, and how fast one replica serves it.  Pure; time is an argument.

A replica's rate is only learnt while it had more to do than it could: an idle engine says nothing about its capacity.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

SETTLE_S = 5.0
"""A newly filled engine finishes nothing at first: this part of a busy span is not measured."""
MEASURE_S = 5.0
"""Shortest span that is a measurement."""
BLEND_RATIO = 0.3
"""Weight of a new measurement."""
FLOOR_RATIO = 0.1
"""A measured rate is never taken as less than this share of the nominal one: a stuck engine is not a slow one."""
COST_BLEND_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class Reading:
    """What of a pool's work only differences from reading to reading mean anything.

    `held_units` and `refused_units`: what waits before the lanes for room, and what was refused for want of it; None
    while that cannot be read.
    """

    appended_records: Mapping[str, int]
    """End offsets by lane, summed."""
    mean_units: Mapping[str, float]
    held_units: float | None = None
    refused_units: float | None = None


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Cost that comes to a pool, as of the reading at `at_s`."""

    units_per_s: float
    reading: Reading
    at_s: float
    sample_units_per_s: float | None = None
    """The rate since the reading before, not smoothed; None where it is unknown."""


def arrivals(last: Arrivals | None, reading: Reading, memory_s: float, now_s: float) -> Arrivals:
    """Smooth the arrival rate with the time constant `memory_s`.

    What went from before the lanes onto them did not arrive then.  A lane that got records of unknown cost leaves the
    rate as it was: unknown is not zero.
    """
    if last is None:
        return Arrivals(0.0, reading, now_s)
    elapsed_s = now_s - last.at_s
    if elapsed_s <= 0:
        return last
    before, mean_units = last.reading, reading.mean_units
    grown = {lane: max(0, n - before.appended_records.get(lane, n)) for lane, n in reading.appended_records.items()}
    if any(records and lane not in mean_units for lane, records in grown.items()):
        return Arrivals(last.units_per_s, reading, now_s)
    units = sum(records * mean_units[lane] for lane, records in grown.items() if records)
    units += _growth(before.held_units, reading.held_units) + _growth(before.refused_units, reading.refused_units)
    sample = max(0.0, units) / elapsed_s
    weight = 1 - math.exp(-elapsed_s / memory_s)
    return Arrivals(last.units_per_s + weight * (sample - last.units_per_s), reading, now_s, sample)


def _growth(before: float | None, now: float | None) -> float:
    return 0.0 if before is None or now is None else now - before


def blend_cost(last: float | None, sample: float) -> float:
    """Mean cost of a lane's records, in units, after one more sample."""
    return sample if last is None else last + COST_BLEND_RATIO * (sample - last)


@dataclass(frozen=True, slots=True)
class Report:
    """What a consumer said of itself.  `queued_units` > 0 means that its engine could not take more."""

    at_s: float
    finished_units: float
    queued_units: float


@dataclass(frozen=True, slots=True)
class BusySpan:
    """An unbroken time in which a consumer had work queued; measured from `mark`, once it has settled."""

    since_s: float
    mark: Report | None = None


def follow(span: BusySpan | None, report: Report) -> tuple[BusySpan | None, float | None]:
    """Add a report to a consumer's span; returns the new span and, when one is complete, a rate in units per second.

    A consumer that has finished nothing yet is warming up: its span has not begun.
    """
    if report.queued_units <= 0:
        return None, None
    if span is None or report.finished_units <= 0:
        return BusySpan(report.at_s), None
    mark = span.mark
    if mark is None:
        settled = report.at_s - span.since_s >= SETTLE_S
        return (replace(span, mark=report) if settled else span), None
    if report.finished_units < mark.finished_units or report.at_s < mark.at_s:
        return BusySpan(report.at_s), None  # it started anew
    elapsed_s = report.at_s - mark.at_s
    if elapsed_s < MEASURE_S:
        return span, None
    return replace(span, mark=report), (report.finished_units - mark.finished_units) / elapsed_s


@dataclass(frozen=True, slots=True)
class ServiceRate:
    """What one replica serves; the nominal rate until measured."""

    units_per_s: float
    is_measured: bool = False


def learn(rate: ServiceRate, sample_units_per_s: float, nominal_units_per_s: float) -> ServiceRate:
    """Blend a measurement in; the first one replaces the nominal rate."""
    sample = max(sample_units_per_s, FLOOR_RATIO * nominal_units_per_s)
    if not rate.is_measured:
        return ServiceRate(sample, is_measured=True)
    return ServiceRate(rate.units_per_s + BLEND_RATIO * (sample - rate.units_per_s), is_measured=True)
