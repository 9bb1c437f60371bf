"""Expiry: which queued work has outlived its deadline.  Pure; time is an argument."""

from topics.records import Work


def is_expired(work: Work, now_s: float) -> bool:
    """Tell whether the deadline has come; work without one never expires."""
    deadline_s = work.request.deadline_s
    return deadline_s is not None and deadline_s <= now_s
