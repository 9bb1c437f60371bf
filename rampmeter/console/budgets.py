"""How full budgets are: the buckets that admission keeps in Redis, as they are by the server's clock."""

import math
from collections.abc import Iterable, Mapping

import msgspec
import redis

from rampmeter.control import Limit
from topics.keys import Keys

Name = tuple[str, str]
"""Level and name."""
MAX_NAMES = 1000
_FIELDS = ("level", "as_of", "refill", "cap")


class Level(msgspec.Struct, frozen=True):
    """A bucket.  Below zero is debt."""

    units: float
    cap_units: float


def read(client: redis.Redis, keys: Keys, names: Iterable[Name]) -> dict[Name, Level]:
    """The buckets that are there; of one that nobody drew on for a day Redis knows nothing.  Raises RedisError."""
    asked = list(dict.fromkeys(names))[:MAX_NAMES]
    with client.pipeline(transaction=False) as calls:
        calls.time()
        for level, name in asked:
            calls.hmget(keys.bucket(level, name), _FIELDS)
        (seconds, micros), *rows = calls.execute()
    now_s = seconds + micros / 1e6
    stored = [dict(zip(_FIELDS, row, strict=True)) for row in rows]
    found = ((name, level_of(fields, now_s)) for name, fields in zip(asked, stored, strict=True))
    return {name: level for name, level in found if level is not None}


def level_of(stored: Mapping[str, bytes | None], now_s: float) -> Level | None:
    """What is in a bucket now: what was, and what flowed in since; its first second flows slower than that."""
    try:
        units, as_of_s, refill, cap = (float(stored[name] or "nan") for name in _FIELDS)
    except ValueError:
        return None
    now_units = units + refill * max(0.0, now_s - as_of_s)
    return Level(min(cap, now_units), cap) if math.isfinite(now_units) and math.isfinite(cap) else None


def wanted(limits: Iterable[Limit], tenants: Iterable[str]) -> list[Name]:
    """The buckets of all named budgets, and of these tenants; the tenant `*` stands for others and has none."""
    named = [(limit.level, limit.name) for limit in limits if limit.name != "*"]
    return list(dict.fromkeys([*named, *(("tenant", name) for name in tenants)]))
