"""Which consumers an order to drain is about, and how far they are with it, as their telemetry says."""

from collections.abc import Collection, Mapping
from threading import Event

from rampmeter import reading
from topics import codec
from topics.clock import Clock
from topics.errors import PipelineError
from topics.settings import Settings
from topics.telemetry import Telemetry

STALE_S = 5.0
"""Reports come twice a second; who said nothing for this long stands still or is dead."""
_LOOK_S = 0.5


class NoConsumer(PipelineError):
    """There is nobody to drain."""


def reports(settings: Settings) -> dict[str, Telemetry]:
    """The last report of every consumer that the topic knows."""
    found: dict[str, Telemetry] = {}
    for message in reading.whole(settings, settings.topic("telemetry")):
        try:
            told = codec.decode_telemetry(message.value() or b"")
        except codec.UNREADABLE:
            continue
        found[told.consumer] = told
    return found


def is_live(told: Telemetry, now_s: float) -> bool:
    """Whether a consumer is there, by its last report."""
    return told.state != "gone" and now_s - told.at_s <= STALE_S


def targets(settings: Settings, name: str, known: Mapping[str, Telemetry], now_s: float) -> list[str]:
    """The live consumers of the pool of this name, else the consumer; raises NoConsumer when there is none."""
    live = {consumer: told for consumer, told in known.items() if is_live(told, now_s)}
    if name in settings.pools:
        found = sorted(consumer for consumer, told in live.items() if told.pool == name)
        if not found:
            raise NoConsumer(f"the pool {name} has no consumer that tells of itself: there is nothing to drain")
        return found
    if name not in live:
        there = ", ".join(sorted(live)) or "none"
        raise NoConsumer(
            f"{name!r} is neither a pool ({', '.join(settings.pools)}) nor a consumer that tells of itself ({there});"
            " `rampmeter doctor --diagnose` names those that fell silent"
        )
    return [name]


def busy(names: Collection[str], known: Mapping[str, Telemetry], now_s: float) -> dict[str, int]:
    """Of these consumers, those that are not drained yet, and how many requests each still runs."""
    return {
        name: told.inflight_requests
        for name in names
        if (told := known.get(name)) is not None
        and is_live(told, now_s)
        and (told.state != "draining" or told.lanes or told.inflight_requests)
    }


def wait(settings: Settings, clock: Clock, names: Collection[str], timeout_s: float) -> dict[str, int]:
    """Until all are drained, or the time is over; what is not drained then."""
    until_s, pause = clock.mono_s() + timeout_s, Event()
    while left := busy(names, reports(settings), clock.wall_s()):
        if clock.mono_s() >= until_s:
            return left
        pause.wait(_LOOK_S)
    return {}
