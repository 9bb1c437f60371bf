"""Whether Redis answers, keeps what it is given, and has the same time as we."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from redis.exceptions import RedisError

from rampmeter.doctor.findings import Area, Finding, Health, ok
from rampmeter.state import shown_redis
from topics import clients, keys
from topics.clock import Clock
from topics.settings import Settings

FULL_RATIO = 0.8
SLOW_S = 0.05
"""A batch of admission waits for this."""
_NO_RIGHT = "Allow the user INFO and TIME (`+info +time +config|get`), or look at the server."


def check(settings: Settings, clock: Clock) -> Iterator[Finding]:
    """All about Redis.  Reads, changes nothing."""
    try:
        with contextlib.closing(clients.redis_sync(settings)) as client:
            began_s = clock.mono_s()
            client.ping()
            took_s = clock.mono_s() - began_s
            yield _speed(took_s, shown_redis(settings))
            yield from _ledger(settings, client)
            yield from _told(client)
    except RedisError as error:
        fix = "Start it, or set RAMPMETER_REDIS__URL. Classes are admitted by their degrade mode until it answers."
        yield Finding(Area.REDIS, Health.DOWN, f"{shown_redis(settings)} does not answer: {error}", fix)


def offset_s(settings: Settings, clock: Clock) -> float | None:
    """By how much Redis' clock is ahead of ours; None when it does not say."""
    try:
        with contextlib.closing(clients.redis_sync(settings)) as client:
            client.ping()  # the connection is made before the clock is read
            before_s = clock.wall_s()
            seconds, micros = client.time()
            after_s = clock.wall_s()
    except RedisError:
        return None
    return seconds + micros / 1e6 - (before_s + after_s) / 2


def _speed(took_s: float, where: str) -> Finding:
    said = f"{where} answers within {took_s * 1000:.1f} ms"
    if took_s <= SLOW_S:
        return ok(Area.REDIS, said)
    return Finding(Area.REDIS, Health.WARN, said, "Each batch of admission waits for a call: bring Redis closer.")


def _ledger(settings: Settings, client: Any) -> Iterator[Finding]:
    if client.exists(keys.of(settings).ledger()):
        yield ok(Area.REDIS, "the ledger is whole")
    else:
        fix = "Streams workers make it when they start, and rebuild it from `balances` within seconds of a loss."
        yield Finding(Area.REDIS, Health.WARN, "no ledger: no worker has started yet, or Redis lost its memory", fix)


def _told(client: Any) -> Iterator[Finding]:
    try:
        told: dict[str, Any] = client.info()
    except RedisError as error:
        yield Finding(Area.REDIS, Health.UNKNOWN, f"it does not tell how it is set up: {error}", _NO_RIGHT)
        return
    with contextlib.suppress(RedisError):  # many servers do not let one ask
        told |= client.config_get("save")
    yield from judge(told)


def judge(told: Mapping[str, Any]) -> Iterator[Finding]:
    """What its own words mean for budgets and claims: INFO, and `save` of its configuration if it told."""
    yield ok(Area.VERSIONS, f"Redis {told.get('redis_version', 'of an unknown version')}")
    if told.get("role") not in (None, "master"):
        fix = "Set RAMPMETER_REDIS__URL to the primary."
        yield Finding(Area.REDIS, Health.BAD, f"it is a {told['role']} and takes no writes", fix)
    policy, most = told.get("maxmemory_policy"), int(told.get("maxmemory", 0))
    if policy not in (None, "noeviction") and most:
        fix = "Set maxmemory-policy noeviction: an evicted claim is run twice, an evicted bucket fills up anew."
        yield Finding(Area.REDIS, Health.BAD, f"it may evict what it holds ({policy})", fix)
    else:
        yield ok(Area.REDIS, "it evicts nothing")
    if most and int(told.get("used_memory", 0)) > FULL_RATIO * most:
        used = int(told["used_memory"]) / most
        fix = "Raise maxmemory, or lower dedupe_window_s: ids are remembered for that long."
        yield Finding(Area.REDIS, Health.WARN, f"{used:.0%} of its memory is used", fix)
    if int(told.get("aof_enabled", 0)) or told.get("save"):
        yield ok(Area.REDIS, "it keeps its data on disk")
    elif told.get("save") is None:
        yield Finding(Area.REDIS, Health.UNKNOWN, "it does not tell whether it keeps its data on disk", _NO_RIGHT)
    else:
        fix = "Set appendonly yes: without it a restart costs a look through reply topics and `balances`."
        yield Finding(Area.REDIS, Health.WARN, "it keeps nothing on disk", fix)
