"""What will arrive while a new replica starts: a straight line through the last readings.  Pure.

Ordinary least squares with a linear trend (Hyndman and Athanasopoulos, Forecasting: Principles and Practice, 3rd
edition, 7.1 and 7.6).  A slope that is not significant counts as none, so that noise is not continued into the future.
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
class History:
    """Arrival rates as they were read: seconds, and units a second since the reading before.  Ascending in time."""

    points: tuple[tuple[float, float], ...] = ()


def remember(history: History, at_s: float, units_per_s: float, window_s: float) -> History:
    """Add a reading and forget those older than the window."""
    kept = [point for point in history.points if at_s - point[0] < window_s]
    return History((*kept, (at_s, units_per_s)))


def mean_ahead(history: History, horizon_s: float, arrival_units_per_s: float) -> float | None:
    """Mean rate of the next `horizon_s`; None while there are too few readings."""
    count = len(history.points)
    if count < LEAST_POINTS:
        return None
    now_s = history.points[-1][0]
    mean_s = sum(at_s for at_s, _ in history.points) / count
    mean = sum(rate for _, rate in history.points) / count
    spread = sum((at_s - mean_s) ** 2 for at_s, _ in history.points)
    slope = sum((at_s - mean_s) * (rate - mean) for at_s, rate in history.points) / spread
    errors = sum((rate - mean - slope * (at_s - mean_s)) ** 2 for at_s, rate in history.points)
    error = math.sqrt(errors / (count - 2) / spread)
    if slope < SIGNIFICANT_T * error:
        slope = 0.0
    ahead = mean + slope * (now_s + horizon_s / 2 - mean_s)
    return min(ahead, max(mean, arrival_units_per_s * (1 + MOST_RISE_RATIO)))
