"""Who is served how much, and who waits for whom: ten tenants, one of them flooding; and a flood of the highest class.

A real streams worker and real consumers of simulated engines, faster than life.  All figures but the waits are ratios.
"""

import random
import time
from collections import defaultdict
from dataclasses import dataclass, field

import msgspec
from confluent_kafka import TopicPartition

from tests.benchmarks.ground import PARTITIONS, await_count, percentile
from topics import catalog, clients, codec
from topics.outcomes import Outcome
from topics.records import Length, Priority, Reply

SPEED = 2.0
ENGINES = 2
NOMINAL_UNITS_PER_S = 1300.0
"""About what a full engine finishes a second at speed 1; only to choose the load that measures it."""
PROMPT_BYTES, OUTPUT_TOKENS = 800, 40
TENANTS = tuple(f"tenant-{n}" for n in range(10))
FLOODER = TENANTS[0]
CALM = TENANTS[1:]
BUDGETED_RATIO = 0.95
"""Part of the capacity that all budgets hold together."""
BACKLOG_RATIO = 1.25
"""What a calm tenant asks for, over its budget."""
FLOOD_RATIO = 10.0
HIGH_RATIO, LOW_RATIO = 2.0, 0.5
"""What the classes ask for in the overload, over the capacity."""
JAIN_AT_LEAST = 0.99
WAIT_RATIO_AT_MOST = 1.2
DRAIN_S = 90.0
_BODY = msgspec.json.encode(
    {
        "model": "llama-3-8b",
        "messages": [{"role": "user", "content": "x" * PROMPT_BYTES}],
        "max_tokens": OUTPUT_TOKENS,
        "simulated_output_tokens": OUTPUT_TOKENS,
    }
)
UNITS = 0.067 * PROMPT_BYTES / 4 + 0.27 * OUTPUT_TOKENS
"""Of each request."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Poisson arrivals of one tenant and class."""

    tenant: str
    priority: Priority
    per_s: float


@dataclass(slots=True)
class Seen:
    """The terminal replies of a run and when it began."""

    start_s: float
    sent: int = 0
    replies: dict = field(default_factory=dict)
    doubled: int = 0

    def done(self, tenant=None, priority=None):
        """Completed requests of a tenant or class."""
        return [
            reply
            for reply in self.replies.values()
            if reply.outcome is Outcome.COMPLETED
            and tenant in {None, reply.tenant}
            and priority in {None, reply.priority}
        ]


def measure(ground, sizes):
    """Figures of the part `fairness`."""
    capacity = _capacity(ground, sizes.fairness_s / 2)
    ground.say(f"fairness: the fleet finishes {capacity:,.0f} units a second")
    rate = BUDGETED_RATIO * capacity / len(TENANTS)
    calm = [Stream(tenant, Priority.MEDIUM, BACKLOG_RATIO * rate / UNITS) for tenant in CALM]
    flood = Stream(FLOODER, Priority.MEDIUM, FLOOD_RATIO * rate / UNITS)
    alone = _run(ground, calm, sizes.fairness_s, TENANT=rate)
    beside = _run(ground, [*calm, flood], sizes.fairness_s, TENANT=rate)
    shared = _run(ground, [*calm, flood], sizes.fairness_s, POOL=rate * len(TENANTS))
    waits = {name: _p99_wait_s(seen) for name, seen in (("alone", alone), ("beside", beside))}
    served = _served_units(beside, sizes.fairness_s)
    shared_served = _served_units(shared, sizes.fairness_s)
    crowd = _crowd(ground, sizes, capacity)
    return {
        "capacity_units_per_s": capacity,
        "jain": jain([served[tenant] for tenant in TENANTS]),
        "jain_at_least": JAIN_AT_LEAST,
        "served_of_entitled": {tenant: served[tenant] / (rate * sizes.fairness_s / 2) for tenant in TENANTS},
        "calm_p99_wait_s": waits,
        "ratio": waits["beside"] / waits["alone"],
        "ratio_at_most": WAIT_RATIO_AT_MOST,
        "shared_jain": jain([shared_served[tenant] for tenant in TENANTS]),
        "shared_jain_at_least": JAIN_AT_LEAST,
        "shared_flooder_over_mean": shared_served[FLOODER] / (sum(shared_served.values()) / len(TENANTS)),
        "shared_used": sum(shared_served.values()) / (rate * len(TENANTS) * sizes.fairness_s / 2),
        "flooder_p99_wait_s": _p99(beside.done(FLOODER)),
        "unanswered": sum(seen.sent - len(seen.replies) for seen in (alone, beside, shared)),
        "doubled": alone.doubled + beside.doubled + shared.doubled,
        **crowd,
    }


def overload(ground, sizes):
    """Figures of the part `overload`: the highest class asks for twice the capacity."""
    capacity = _capacity(ground, sizes.fairness_s / 2)
    streams = [Stream(t, Priority.HIGH, HIGH_RATIO * capacity / UNITS / 5) for t in TENANTS[:5]]
    streams += [Stream(t, Priority.LOW, LOW_RATIO * capacity / UNITS / 5) for t in TENANTS[5:]]
    seen = _run(ground, streams, sizes.fairness_s)
    begin_s, end_s = seen.start_s + sizes.fairness_s / 2, seen.start_s + sizes.fairness_s
    finished = [r for r in seen.done() if begin_s <= r.timing.finished_s < end_s]
    low = sum(r.priority is Priority.LOW for r in finished) / len(finished)
    labels = {r.id: r.priority for r in seen.replies.values()}
    return {
        "low_share": low,
        "low_share_guaranteed": 0.9 / 13,
        "ratio": low / (1 / 9),
        "ratio_at_least": 0.9,
        "oldest_wait_s": {p.value: max((_wait_s(r) for r in seen.done(priority=p)), default=0.0) for p in Priority},
        "relabelled": sum(not i.startswith(p.value) for i, p in labels.items()),
        "outcomes": _outcomes(seen),
        "unanswered": seen.sent - len(seen.replies),
    }


def jain(values):
    """(sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def _crowd(ground, sizes, capacity):
    """All ask for more than the fleet has, and no budget binds: only the shares of the lanes are left."""
    streams = [Stream(t, Priority.MEDIUM, 1.5 * capacity / len(TENANTS) / UNITS) for t in CALM]
    streams.append(Stream(FLOODER, Priority.MEDIUM, 10 * capacity / len(TENANTS) / UNITS))
    seen = _run(ground, streams, sizes.fairness_s)
    served = _served_units(seen, sizes.fairness_s)
    return {
        "crowded_jain": jain([served[tenant] for tenant in TENANTS]),
        "crowded_flooder_over_mean": served[FLOODER] / (sum(served.values()) / len(TENANTS)),
        "crowded_outcomes": _outcomes(seen),
    }


def _capacity(ground, seconds):
    """Units a second that the fleet finishes while work waits, as its consumers tell."""
    per_s = 2 * NOMINAL_UNITS_PER_S * SPEED * ENGINES / UNITS / len(TENANTS)
    with _site(ground) as site:
        _send(site, [Stream(tenant, Priority.MEDIUM, per_s) for tenant in TENANTS], seconds, Seen(0.0))
        reader = clients.reader(site.settings)
        reader.assign([TopicPartition(site.settings.topic("telemetry"), 0, 0)])
        told = {}
        while messages := reader.consume(1000, timeout=0.5):
            for message in messages:
                if message.error() is None:
                    seen = codec.decode_telemetry(message.value())
                    told[seen.consumer] = seen.capacity_units_per_s or told.get(seen.consumer, 0.0)
            if any(message.error() is not None for message in messages):
                break
        reader.close()
    return sum(told.values())


def _run(ground, streams, seconds, **budgets):
    with _site(ground, **budgets) as site:
        seen = Seen(time.time())
        collector = _Collector(site.settings, seen)
        _send(site, streams, seconds, seen)
        await_count(collector.count, seen.sent, DRAIN_S, site.worker)
        collector.close()
    return seen


def _site(ground, **budgets):
    """A simulated fleet; `budgets` bind, by level, in units a second."""
    site = ground.site()
    site.env |= {"RAMPMETER_GPU__ENGINE": "simulated", "RAMPMETER_GPU__SPEED": str(SPEED)}
    for level, rate in budgets.items():
        bucket = {"refill_units_per_s": rate, "burst_s": 2.0, "warm_up_s": 0}
        site.env[f"RAMPMETER_STREAMS__{level}_BUDGET"] = msgspec.json.encode(bucket).decode()
    return _Started(site)


class _Started:
    """A site with its worker and consumers, ready."""

    def __init__(self, site):
        self._site = site

    def __enter__(self):
        site = self._site.__enter__()
        site.worker = site.start("streams", "streams")
        fleet = [site.start(f"gpu-{n}", "gpu_consumers") for n in range(ENGINES)]
        for child in (site.worker, *fleet):
            child.wait_ready()
        return site

    def __exit__(self, *error):
        self._site.__exit__(*error)


class _Collector:
    """Terminal replies of a site, read when asked."""

    def __init__(self, settings, seen=None):
        self._seen = seen or Seen(0.0)
        self._reader = clients.reader(settings)
        topic = settings.topic(catalog.default_reply_name(settings))
        self._reader.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])

    def count(self):
        while messages := self._reader.consume(2000, timeout=0.05):
            for message in messages:
                if message.error() is None:
                    self._take(codec.decode_answer(message.value()))
        return len(self._seen.replies)

    def _take(self, reply):
        if isinstance(reply, Reply):
            self._seen.doubled += reply.id in self._seen.replies
            self._seen.replies[reply.id] = reply

    def close(self):
        self._reader.close()


def _send(site, streams, seconds, seen):
    """Send each stream's arrivals at their times."""
    drawn = random.Random(7)
    shots = []
    for stream in streams:
        at_s = drawn.expovariate(stream.per_s)
        while at_s < seconds:
            shots.append((at_s, len(shots), stream))
            at_s += drawn.expovariate(stream.per_s)
    producer = clients.producer(site.settings, linger_ms=2)
    start_s = time.monotonic()
    seen.start_s = time.time()
    for at_s, number, stream in sorted(shots, key=lambda shot: shot[:2]):
        while (late_s := start_s + at_s - time.monotonic()) > 0:
            producer.poll(min(late_s, 0.01))
        identity = f"{stream.priority}-{stream.tenant}-{number}"
        producer.produce(
            catalog.landing(site.settings, stream.priority, Length.SHORT), _BODY, stream.tenant,
            headers=[("rampmeter_id", identity.encode())],
        )  # fmt: skip
        producer.poll(0)
    producer.flush(30)
    seen.sent = len(shots)


def _served_units(seen, seconds):
    """Cost by tenant that was finished in the second half of the sending."""
    served = defaultdict(float)
    for reply in seen.done():
        if seen.start_s + seconds / 2 <= reply.timing.finished_s < seen.start_s + seconds:
            served[reply.tenant] += reply.cost_units
    return served


def _wait_s(reply):
    return reply.timing.started_s - reply.timing.arrived_s


def _p99(replies):
    return percentile([_wait_s(reply) for reply in replies], 0.99)


def _p99_wait_s(seen):
    return _p99([reply for tenant in CALM for reply in seen.done(tenant)])


def _outcomes(seen):
    counts = defaultdict(int)
    for reply in seen.replies.values():
        counts[f"{reply.outcome}:{reply.reason}"] += 1
    return dict(counts)
