"""Names of the Redis keys that more than one process reads.

One hash slot, so that a Lua call may touch all of them.
"""

_TAG = "{rampmeter}"


def bucket(level: str, name: str) -> str:
    """Token bucket of a budget level: `global`, `pool`, `tenant` or `class`."""
    return f"{_TAG}:bucket:{level}:{name}"


def reservation(request_id: str) -> str:
    """What admission decided about an id, and the units it holds."""
    return f"{_TAG}:request:{request_id}"


def claim(request_id: str) -> str:
    """Who runs an id, or where its answer lies."""
    return f"{_TAG}:claim:{request_id}"


def promoted(request_id: str) -> str:
    """Mark that an id was copied to the aged tier."""
    return f"{_TAG}:promoted:{request_id}"


def ledger() -> str:
    """Mark that the ledger is whole; Redis lost it when this is missing."""
    return f"{_TAG}:ledger"


def rebuild() -> str:
    """Lock of the worker that brings a lost ledger back."""
    return f"{_TAG}:rebuild"


def expiries() -> str:
    """Sorted set of the ids that hold or wait for budget; the score is the server time at which that lapses.

    Whoever runs an id renews its reservation by `ZADD <this> XX GT <now_s + dedupe_window_s> <id>`: with XX, since one
    that is settled must not come back.
    """
    return f"{_TAG}:expiries"


def shares(pool: str) -> str:
    """What is open and waits in a pool: by lane, by lane and tenant (`<lane>/<tenant>`) and by tenant (`/<tenant>`)."""
    return f"{_TAG}:shares:{pool}"
