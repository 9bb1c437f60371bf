"""When the steps of a request happened, and where its time went.  Pure."""

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When each step happened, in Unix seconds; what was not reached is absent."""

    arrived_s: float
    admitted_s: float | None = None
    lane_s: float | None = None
    """When the record that was answered was put on its lane: later than the admission if promoted or tried again."""
    started_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None


class Waits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the time from arrival to end went: the first four add up to it; what was not reached is absent."""

    queued_s: float | None = None
    """From the arrival to the admission."""
    admitted_s: float | None = None
    """From there to the lane: earlier lanes, if it was promoted, and earlier attempts."""
    lane_s: float | None = None
    """From there to the start in the engine."""
    engine_s: float | None = None
    """From there to the end."""
    first_token_s: float | None = None
    """Of the time in the engine, that until the first token."""


def waits(timing: Timing) -> Waits:
    """What lies between the moments that were reached; clocks of two machines may disagree, so none is below zero."""
    moments = (timing.arrived_s, timing.admitted_s, timing.lane_s, timing.started_s)
    spans: list[float | None] = []
    for at, begun_s in enumerate(moments):
        later = [moment for moment in (*moments[at + 1 :], timing.finished_s) if moment is not None]
        spans.append(None if begun_s is None or not later else max(0.0, later[0] - begun_s))
    queued_s, admitted_s, lane_s, engine_s = spans
    return Waits(
        queued_s=queued_s,
        admitted_s=admitted_s,
        lane_s=lane_s,
        engine_s=engine_s,
        first_token_s=_between(timing.started_s, timing.first_token_s),
    )


def _between(begun_s: float | None, ended_s: float | None) -> float | None:
    return None if begun_s is None or ended_s is None else max(0.0, ended_s - begun_s)
