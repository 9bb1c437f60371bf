"""What will arrive while a new replica starts: a straight line through the last readings.  Pure.

Ordinary least squares with a linear trend (Hyndman and Athanasopoulos, Forecasting: Principles and Practice, 3rd
edition, 7.1 and 7.6), each reading weighted by the time that it is of: a round that follows at once on a slow one tells
of moments.  A slope that is not significant counts as none, so that noise is not continued into the future.
A fall is not continued either: who sends away too many in a lull has to call them back.
"""

import math
from dataclasses import dataclass

LEAST_POINTS = 10
SIGNIFICANT_T = 3.0
"""Slope over its standard error.  Too small: noise becomes a trend.  Too large: a rise is seen late."""
MOST_RISE_RATIO = 1.0
"""A line through a step overshoots: the forecast is at most so much above what arrives now."""


@dataclass(frozen=True, slots=True)
class Point:
    """A reading at `at_s`: the rate over the `over_s` (> 0) since the reading before."""

    at_s: float
    units_per_s: float
    over_s: float


@dataclass(frozen=True, slots=True)
class History:
    """Arrival rates as they were read.  Ascending in time."""

    points: tuple[Point, ...] = ()


def remember(history: History, point: Point, window_s: float) -> History:
    """Add a reading and forget those older than the window."""
    kept = [past for past in history.points if point.at_s - past.at_s < window_s]
    return History((*kept, point))


def mean_ahead(history: History, horizon_s: float, arrival_units_per_s: float) -> float | None:
    """Mean rate of the next `horizon_s`; None while there are too few readings."""
    points = history.points
    if len(points) < LEAST_POINTS:
        return None
    whole_s = sum(point.over_s for point in points)
    mean_s = sum(point.at_s * point.over_s for point in points) / whole_s
    mean = sum(point.units_per_s * point.over_s for point in points) / whole_s
    apart = [(point.at_s - mean_s, point.units_per_s - mean, point.over_s) for point in points]
    spread = sum(weight * since_s**2 for since_s, _, weight in apart)
    slope = sum(weight * since_s * above for since_s, above, weight in apart) / spread
    errors = sum(weight * (above - slope * since_s) ** 2 for since_s, above, weight in apart)
    error = math.sqrt(errors / (len(points) - 2) / spread)
    if slope < SIGNIFICANT_T * error:
        slope = 0.0
    ahead = mean + slope * (points[-1].at_s + horizon_s / 2 - mean_s)
    return min(ahead, max(mean, arrival_units_per_s * (1 + MOST_RISE_RATIO)))
