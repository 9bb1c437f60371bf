"""Crashes: what becomes of work whose owners were lost while they had it.  Pure."""

_SUSPECT_TAKEOVERS = 2


def is_suspect(takeovers: int, max_takeovers: int) -> bool:
    """Tell whether it may be the cause, so that it runs apart from others like it and the next loss counts against one.

    A single loss may have any cause, so all that ran then goes on at once.
    """
    return takeovers >= min(_SUSPECT_TAKEOVERS, max_takeovers)


def is_over(takeovers: int, max_takeovers: int) -> bool:
    """Tell whether it ended too many owners to run again."""
    return takeovers > max_takeovers
