"""Names of the Redis keys that more than one process reads.

One hash slot, so that a Lua call may touch all of them.
"""

_TAG = "{rampmeter}"


def bucket(level: str, name: str) -> str:
    """Token bucket of a budget level: `global`, `pool` or `tenant`."""
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
