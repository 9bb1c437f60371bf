"""The budget ledger in tests: settings with still buckets, asks, charges, and time that passes inside Redis."""

import struct
from functools import lru_cache

from streams.breaker import Breaker
from streams.budgets import Ask, Budgets, Charge
from streams.limits import LiveLimits
from streams.settings import Bucket, Degrade, Fair, Streams, StreamsSettings
from tests.support.clock import FakeClock
from topics import clients, keys
from topics.records import Origin, Priority
from topics.settings import Pool, Redis

SLOW = 1e-8
"""A refill so slow that no test sees any of it."""
CAPS = {"global": 1000, "pool": 500, "tenant": 100, "class": 2000}
_WAIT = struct.Struct("<ddd")
ALL = ("global:all", "pool:default", "tenant:acme", "class:high")


def still(cap):
    """A bucket that holds `cap` and gets nothing."""
    return Bucket(refill_units_per_s=SLOW, burst_s=cap / SLOW, warm_up_s=0)


def made(url, **streams):
    """Settings of two pools; buckets are still unless named."""
    sections = {f"{level}_budget": still(CAPS[level]) for level in ("global", "pool", "tenant")}
    sections["fair"] = Fair(window_s=10.0)
    sections["degrade"] = Degrade(timeout_s=10.0)  # a busy machine is no outage
    sections["class_budgets"] = dict.fromkeys(Priority, still(CAPS["class"]))
    return StreamsSettings(
        redis=Redis(url=url, timeout_s=2.0),
        pools={"default": Pool(), "cpu": Pool()},
        streams=Streams(**{**sections, **streams}),
    )


def opened(settings):
    """A worker's view of the ledger."""
    return Budgets(
        clients.redis_async(settings),
        settings,
        Breaker(FakeClock(), settings.streams.degrade),
        LiveLimits(settings.streams),
        "streams-test",
    )


async def filled(settings, *tenants, pools=("default", "cpu")):
    """A whole ledger whose buckets are warm and full; those that are named, so that nobody is new."""
    budgets = opened(settings)
    section = settings.streams
    buckets = {"global:all": section.global_budget}
    buckets |= {f"pool:{pool}": section.pool_budget for pool in pools}
    buckets |= {f"class:{name}": bucket for name, bucket in section.class_budgets.items()}
    for tenant in tenants or ("acme",):
        buckets[f"tenant:{tenant}"] = section.tenant_budgets.get(tenant, section.tenant_budget)
    now_s = server_s(settings)
    await budgets.restore({name: (0.0 if b.paced else b.cap_units, now_s) for name, b in buckets.items()})
    return budgets


def ask(request_id, units=10.0, offset=None, **fields):
    """A request of acme for the high short lane."""
    offset = abs(hash(request_id)) % 10**9 if offset is None else offset
    defaults = {
        "origin": Origin(topic="requests.high.short", partition=0, offset=offset),
        "reply_topic": "replies",
        "tenant": "acme",
        "pool": "default",
        "lane": "high.short",
        "priority": Priority.HIGH,
        "lane_wait_limit_s": 1000.0,
        "budget_wait_limit_s": 1000.0,
    }
    return Ask(id=request_id, units=units, **{**defaults, **fields})


def charge(request_id, units, **fields):
    """The final cost of one of acme's requests."""
    defaults = {
        "attempt": 1,
        "partial": False,
        "reserved_units": 10.0,
        "tenant": "acme",
        "pool": "default",
        "priority": Priority.HIGH,
        "lane": "high.short",
    }
    return Charge(id=request_id, units=units, **{**defaults, **fields})


@lru_cache(maxsize=4)
def _client(url):
    return clients.redis_sync(made(url))


def emptied(server, number):
    """The address of a server's database, with nothing in it."""
    address = server.url.rsplit("/", 1)[0] + f"/{number}"
    redis_of(made(address)).flushdb()
    return address


def redis_of(settings):
    """One blocking client for each server."""
    return _client(settings.redis.url)


def server_s(settings):
    """The server's clock."""
    seconds, micros = redis_of(settings).time()
    return seconds + micros / 1e6


def levels(settings, *names):
    """Stored levels of buckets; None for one that is not there."""
    redis = redis_of(settings)
    stored = [redis.hget(keys.of(settings).bucket(*name.split(":", 1)), "level") for name in names]
    return [None if level is None else round(float(level), 3) for level in stored]


def pass_time(settings, seconds):
    """Let the buckets, the leases, the turns and what is remembered of them be older by `seconds`."""
    redis, named = redis_of(settings), keys.of(settings)
    for key in redis.scan_iter(named.bucket("*", "*")):
        for field in ("as_of", "born"):
            redis.hset(key, field, repr(float(redis.hget(key, field)) - seconds))
    for member, score in redis.zrange(named.expiries(), 0, -1, withscores=True):
        redis.zadd(named.expiries(), {member: score - seconds})
    for key in redis.scan_iter(named.ledger().replace("ledger", "line:*:waits")):
        for flow, packed in redis.hgetall(key).items():
            if flow:
                want, until_s, weight = _WAIT.unpack(packed)
                redis.hset(key, flow, _WAIT.pack(want, until_s - seconds, weight))
