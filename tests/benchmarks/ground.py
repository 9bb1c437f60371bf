"""Where a measurement takes place: fresh topics and an empty Redis on one embedded broker for all parts."""

import json
import math
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

from tests.benchmarks.processes import Child
from topics import admin, catalog, clients
from topics.records import Length, Priority
from topics.settings import Settings, load

PARTITIONS = 4
TENANTS = 16
TEXT_BYTES = 800
MAX_TOKENS = 64
COUNT_TRIES = 20
AMPLE = {"refill_units_per_s": 1e9, "warm_up_s": 0}
_BODY = msgspec.json.encode(
    {
        "model": "llama-3-8b",
        "messages": [
            {"role": "system", "content": "You answer in one short sentence."},
            {"role": "user", "content": "why does the ramp meter show red? ".ljust(TEXT_BYTES, "x")},
        ],
        "max_tokens": MAX_TOKENS,
    }
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    admission_requests: int = 16_000
    admission_rounds: int = 2
    admission_latency_s: float = 15.0
    admission_warm_s: float = 20.0
    admission_drive_s: float = 5.0
    consumer_requests: int = 1500
    consumer_rounds: int = 2
    consumer_lot: int = 50_000
    budgets_admitters: int = 200
    budgets_s: float = 60.0
    fairness_s: float = 20.0
    latency_rounds: int = 4
    latency_round_s: float = 5.0
    latency_per_s: float = 50.0
    latency_warm_s: float = 2.0
    saturation_requests: int = 40_000
    soak_s: float = 600.0
    soak_warm_s: float = 120.0
    soak_per_s: float = 200.0


@dataclass(frozen=True, slots=True)
class Ground:
    """Addresses of the servers, their process ids, and where logs go."""

    bootstrap_servers: str
    redis_url: str
    broker_pid: int
    redis_pid: int
    log_dir: Path
    say: object

    def site(self):
        """Fresh topics and an empty Redis."""
        return Site(self)


class Site:
    """One measurement's topics, settings and children; a context."""

    def __init__(self, ground):
        self.ground = ground
        self.settings = load(
            Settings,
            kafka={"bootstrap.servers": ground.bootstrap_servers},
            redis={"url": ground.redis_url},
            topics={"prefix": f"b{uuid.uuid4().hex[:8]}."},
        )
        self.env = {
            "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": ground.bootstrap_servers,
            "RAMPMETER_REDIS__URL": ground.redis_url,
            "RAMPMETER_TOPICS__PREFIX": self.settings.topics.prefix,
            # Nothing is refused: every record takes the whole path.
            **{f"RAMPMETER_STREAMS__{level}_BUDGET": json.dumps(AMPLE) for level in ("GLOBAL", "POOL", "TENANT")},
            "RAMPMETER_STREAMS__CLASS_BUDGETS": json.dumps(dict.fromkeys(Priority, AMPLE)),
            "RAMPMETER_GPU__ENGINE": "null",
        }
        self._admin = clients.admin(self.settings)
        self._children = ExitStack()

    def __enter__(self):
        with clients.redis_sync(self.settings) as client:
            client.flushdb()
        admin.apply(self.settings)
        return self

    def __exit__(self, *_):
        self._children.close()
        mine = [t for t in admin.partition_counts(self.settings) if t.startswith(self.settings.topics.prefix)]
        for future in self._admin.delete_topics(mine).values():
            future.result()

    def create(self, *names):
        """Create plain topics beside the catalogue; returns their full names."""
        topics = [NewTopic(self.settings.topic(name), num_partitions=PARTITIONS) for name in names]
        for future in self._admin.create_topics(topics).values():
            future.result()
        return [topic.topic for topic in topics]

    def start(self, name, module, *arguments):
        """Start a child that is stopped at the end."""
        child = Child(name, module, self.env, self.ground.log_dir, *arguments)
        self._children.callback(child.stop)
        return child

    def landing(self):
        """All landing topics."""
        return [catalog.landing(self.settings, priority, length) for priority in Priority for length in Length]

    def put(self, count):
        """Put `count` requests on the landing topics, evenly, as fast as the broker takes them."""
        landing = self.landing()
        self.produce({"topic": landing[n % len(landing)], **request(n)} for n in range(count))

    def produce(self, records):
        """Put these on their topics, as fast as the broker takes them."""
        producer = clients.producer(self.settings, linger_ms=20)
        for record in records:
            while True:
                try:
                    producer.produce(**record)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(60.0):
            raise RuntimeError("the broker did not take all records")

    def counter(self, topics):
        """A function that tells how many records these topics hold."""
        asked = {
            TopicPartition(topic, partition): OffsetSpec.latest() for topic in topics for partition in range(PARTITIONS)
        }

        def count():
            for _ in range(COUNT_TRIES):
                try:
                    return sum(future.result().offset for future in self._admin.list_offsets(asked).values())
                except KafkaException:  # a fresh partition may have no leader for a moment
                    time.sleep(0.2)
            raise RuntimeError("the broker does not tell its end offsets")

        return count

    def committed(self, group, topic):
        """A function that tells how many records of a topic a group has committed."""
        reader = clients.consumer(self.settings, catalog.group(self.settings, group))
        self._children.callback(reader.close)
        asked = [TopicPartition(self.settings.topic(topic), partition) for partition in range(PARTITIONS)]

        def count():
            return sum(max(0, done.offset) for done in reader.committed(asked, timeout=10))

        return count


def request(n):
    """A landing record as arguments of `produce`."""
    return {
        "key": f"tenant-{n % TENANTS}".encode(),
        "value": _BODY,
        "headers": [("rampmeter_id", f"bench-{uuid.uuid4().hex}".encode())],
    }


def wait_until(count, target, limit_s, child):
    """Wait until `count()` reaches `target`; yields (seconds, count) every 0.1 s."""
    end_s = time.monotonic() + limit_s
    while True:
        reached = count()
        yield time.monotonic(), reached
        if reached >= target:
            return
        if time.monotonic() > end_s:
            raise RuntimeError(f"only {reached} of {target} records within {limit_s:g} s")
        child.check()
        time.sleep(0.1)


def await_count(count, target, limit_s, child):
    """Wait until `count()` reaches `target`."""
    for _ in wait_until(count, target, limit_s, child):
        pass


def percentile(values, ratio):
    """The smallest value that `ratio` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(ratio * len(ordered)) - 1)]
