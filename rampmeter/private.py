"""Stacks for one measured run: their own data, their own topics, nothing of the user's touched."""

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from rampmeter import stack, state
from rampmeter.settings import StackSettings
from rampmeter.stack import Plan, Running, Say
from topics import admin, clients, keys
from topics.clock import Clock
from topics.local_process import DirectoryLock
from topics.records import Priority
from topics.settings import load

UNBOUND_UNITS_PER_S = 1e9
"""A budget that never binds."""
_SCANNED = 1000


@contextmanager
def running(plan: Plan, clock: Clock, say: Say) -> Iterator[Running]:
    """A stack on topics and keys of its own: on fresh embedded parts, or under a fresh prefix on the user's."""
    own = load(StackSettings)
    has_kafka, has_redis = state.has_own_kafka(own), state.has_own_redis(own)
    is_shared = has_kafka or has_redis
    prefix = f"{own.topics.prefix}run-{uuid.uuid4().hex[:8]}." if is_shared else own.topics.prefix
    settings = load(StackSettings, topics={"prefix": prefix})
    stack.make_folder(plan.data_dir)
    with ExitStack() as held:
        lock = DirectoryLock(plan.data_dir, f"rampmeter {plan.data_dir.name}")
        held.callback(lock.release)
        lock.note(os.getpid())
        _clear(plan.data_dir, "kafka", "redis", "logs")
        held.callback(_clear, plan.data_dir, "kafka", "redis")
        if has_kafka:
            held.callback(_delete_topics, settings)
        if has_redis:
            held.callback(delete_keys, settings)
        env = {**plan.env, "RAMPMETER_TOPICS__PREFIX": prefix}
        yield held.enter_context(stack.running(settings, replace(plan, env=env), clock, say))


def _clear(data_dir: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(data_dir / name, ignore_errors=True)


def _delete_topics(settings: StackSettings) -> None:
    mine = [name for name in admin.partition_counts(settings) if name.startswith(settings.topics.prefix)]
    if mine:
        clients.admin(settings).delete_topics(mine)


def delete_keys(settings: StackSettings) -> None:
    """Delete what this deployment has in Redis."""
    with closing(clients.redis_sync(settings)) as redis, redis.pipeline(transaction=False) as calls:
        for key in redis.scan_iter(keys.of(settings).all(), _SCANNED):
            calls.unlink(key)
        calls.execute()


def unbound_budgets() -> dict[str, str]:
    """Variables under which no budget refuses anything."""
    bucket = {"refill_units_per_s": UNBOUND_UNITS_PER_S, "warm_up_s": 0}
    levels = ("GLOBAL", "POOL", "TENANT")
    classes = json.dumps(dict.fromkeys(Priority, bucket))
    return {
        **{f"RAMPMETER_STREAMS__{level}_BUDGET": json.dumps(bucket) for level in levels},
        "RAMPMETER_STREAMS__CLASS_BUDGETS": classes,
    }


def tenant_budgets(units_per_s: Mapping[str, float], burst_s: float) -> dict[str, str]:
    """Variables that bound these tenants."""
    budgets = {name: {"refill_units_per_s": rate, "burst_s": burst_s} for name, rate in units_per_s.items()}
    return {"RAMPMETER_STREAMS__TENANT_BUDGETS": json.dumps(budgets)}
