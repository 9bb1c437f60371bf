"""Expiry: until when queued work may begin.  Pure; time is an argument."""

from dataclasses import dataclass

from topics.records import Length, Work


@dataclass(frozen=True, slots=True)
class StartLimits:
    """Longest waits of work from its arrival to an engine, by length; None is no limit."""

    short_s: float | None = None
    long_s: float | None = None

    def of(self, length: Length) -> float | None:
        """That of a length."""
        return self.short_s if length is Length.SHORT else self.long_s


UNLIMITED = StartLimits()


def last_start_s(work: Work, limits: StartLimits = UNLIMITED) -> float | None:
    """When it is too late to begin it: at its deadline, or sooner when its length may not wait as long; None is never.

    What would come too late takes the place of what could still be in time: above saturation only this keeps both
    lengths in time.
    """
    deadline_s, limit_s = work.request.deadline_s, limits.of(work.price.length)
    if limit_s is None or work.attempt > 1:  # it began in time, and failed
        return deadline_s
    waited_s = work.request.arrived_s + limit_s
    return waited_s if deadline_s is None else min(deadline_s, waited_s)


def is_expired(work: Work, now_s: float, limits: StartLimits = UNLIMITED) -> bool:
    """Tell whether it is too late to begin it."""
    last_s = last_start_s(work, limits)
    return last_s is not None and last_s <= now_s
