"""A Redis that a test may freeze, kill and flush, and a ledger in it."""

import os
import signal

import msgspec
import pytest

from streams.breaker import Breaker
from streams.budgets import Ask, Budgets
from streams.limits import LiveLimits
from streams.rebuild import Rebuild
from streams.settings import Bucket, Degrade, Streams, StreamsSettings
from topics import clients, keys
from topics.clock import SystemClock
from topics.local_redis import LocalRedis
from topics.records import Origin, Priority
from topics.settings import Redis

SLOW = 1e-6
"""A refill so slow that no test sees any of it."""
FULL_UNITS = 10_000.0
NAMES = (("global", "all"), ("pool", "default"), ("tenant", "acme"), ("tenant", "blue"), ("class", "high"))


@pytest.fixture
def own_redis(tmp_path):
    """A server of this test alone; it runs again at the end, however the test left it."""
    with LocalRedis(tmp_path / "redis") as server:
        yield server
        if server.is_running():
            thaw(server)


def freeze(server):
    os.kill(server.pid, signal.SIGSTOP)


def thaw(server):
    os.kill(server.pid, signal.SIGCONT)


class Ledger:
    """The budgets of one worker and what looks after them; `base` says where Kafka is."""

    def __init__(self, base, server, **degrade):
        bucket = Bucket(refill_units_per_s=SLOW, burst_s=FULL_UNITS / SLOW)
        budgets = dict.fromkeys(("global_budget", "pool_budget", "tenant_budget"), bucket)
        classes = dict.fromkeys(Priority, bucket)
        self.settings = StreamsSettings(
            kafka=base.kafka,
            topics=base.topics,
            redis=Redis(url=server.url),
            streams=Streams(**budgets, class_budgets=classes, degrade=Degrade(**degrade)),
        )
        clock = SystemClock()
        self.breaker = Breaker(clock, self.settings.streams.degrade)
        self.budgets = Budgets(
            clients.redis_async(self.settings), self.settings, self.breaker, LiveLimits(self.settings.streams)
        )
        self.rebuild = Rebuild(self.settings, clock, self.budgets, LiveLimits(self.settings.streams))
        self.sync = clients.redis_sync(self.settings)
        self._producer = clients.producer(self.settings)
        self._clock, self._offset = clock, 0

    async def fill(self):
        """Fill all buckets, as if they had long been there."""
        await self.budgets.restore(
            {f"{level}:{name}": (FULL_UNITS, self._clock.wall_s() - 60) for level, name in NAMES}
        )

    def ask(self, request_id, units=10.0, tenant="acme"):
        self._offset += 1
        origin = Origin(topic="requests.high.short", partition=0, offset=self._offset)
        return Ask(request_id, origin, "replies", tenant, "default", "high.short", Priority.HIGH, units, 120.0)

    def levels(self):
        return {f"{level}:{name}": self._level(level, name) for level, name in NAMES}

    def _level(self, level, name):
        stored = self.sync.hget(keys.of(self.settings).bucket(level, name), "level")
        return None if stored is None else float(stored)

    def log(self):
        """Write what the last calls changed to the topic, as admission does with each batch."""
        balances = self.budgets.take_balances()
        if balances is not None:
            self._producer.produce(self.settings.topic("balances"), msgspec.json.encode(balances))
            assert self._producer.flush(10) == 0

    async def rebuilt(self):
        """Step until the ledger is whole: right after its creation a topic may have no leader."""
        for _ in range(50):
            await self.rebuild.step()
            if not self.budgets.is_lost:
                return
        raise AssertionError("the ledger was not rebuilt")
