"""Fallback: where an answer goes that its topic does not take.  Pure."""

from dataclasses import dataclass, replace
from enum import StrEnum

from topics.outcomes import Reason


class Place(StrEnum):
    """Where an answer is sent."""

    ASKED = "asked"
    ANY_PARTITION = "any_partition"
    """The topic that was asked for, without the partition."""
    DEFAULT = "default"
    """The default topic."""
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class Route:
    """How an answer is sent."""

    place: Place = Place.ASKED
    is_alone: bool = False
    """In a batch of its own: the broker measures batches, and answers that lie in one would all be too large."""
    is_short: bool = False
    """Without the engine's response."""


AS_ASKED = Route()


def after(route: Route, reason: Reason) -> Route:
    """The next try, once this one was refused for good.  Ends at NOWHERE after at most five."""
    if reason is Reason.REPLY_TOO_LARGE and not route.is_alone:
        return replace(route, is_alone=True)
    if reason is Reason.REPLY_TOO_LARGE and not route.is_short:
        return replace(route, is_short=True)
    if reason is Reason.REPLY_PARTITION_MISSING and route.place is Place.ASKED:
        return replace(route, place=Place.ANY_PARTITION)
    return replace(route, place=Place.NOWHERE if route.place is Place.DEFAULT else Place.DEFAULT)
