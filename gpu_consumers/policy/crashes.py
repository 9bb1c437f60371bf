"""Crashes: what becomes of work whose owners were lost while they had it.  Pure."""

from enum import StrEnum

_SUSPECT_TAKEOVERS = 2


class Verdict(StrEnum):
    """Whether work that was taken over runs again."""

    RUN = "run"
    WAIT = "wait"
    END = "end"


def is_suspect(takeovers: int, max_takeovers: int) -> bool:
    """Tell whether it may be the cause.  A single loss may have any, so all that ran then goes on at once."""
    return takeovers >= min(_SUSPECT_TAKEOVERS, max_takeovers)


def judge(takeovers: int, max_takeovers: int, *, another_runs: bool) -> Verdict:
    """Suspects run one at a time in a consumer, so that the next loss counts against one; too many losses end it.

    Without this, all that ran beside the cause would be given up with it.
    """
    if takeovers > max_takeovers:
        return Verdict.END
    return Verdict.WAIT if another_runs and is_suspect(takeovers, max_takeovers) else Verdict.RUN
