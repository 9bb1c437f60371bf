"""What a number in a record can be: wider than anything real, so narrow that sums and products of them stay numbers.

A record beyond that is none of ours: it does not decode, and goes the way of what cannot be read.
"""

import math
from typing import Annotated

from msgspec import Meta

MAX_COUNT = 2**31 - 1

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Ordinal = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
"""The first is 1."""
Units = Annotated[float, Meta(ge=0, le=1e15)]
"""Cost, or cost per second."""
Seconds = Annotated[float, Meta(ge=0, le=1e8)]
"""A duration: up to three years."""
UnixSeconds = Annotated[float, Meta(ge=0, le=1e11)]
"""A time: not one in milliseconds."""
TokenSeconds = Annotated[float, Meta(ge=0, le=1e18)]
Factor = Annotated[float, Meta(gt=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1e3)]
"""A ratio that ought to be at most 1."""
Celsius = Annotated[float, Meta(ge=-300, le=1e4)]


def count(value: object) -> int:
    """A foreign number as a count: held to its bounds, 0 for what is no number."""
    return int(max(0, min(MAX_COUNT, value))) if isinstance(value, int | float) else 0


def finite(text: str) -> float:
    """A number as text.  Raises ValueError also for infinity and nan, which no comparison would refuse."""
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number
