"""Added latency of the whole path with an engine that takes no time, beside a bare relay, in turns."""

import threading
import time
import uuid
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

from confluent_kafka import TopicPartition

from tests.benchmarks.ground import PARTITIONS, percentile, request
from topics import catalog, clients
from topics.records import Length, Priority

AT_MOST = 3.0
SETTLE_LIMIT_S = 30.0
MS_PER_S = 1000.0


@dataclass(frozen=True, slots=True)
class Path:
    """Where records go in and where they come out, by the id that is their key there."""

    name: str
    source: str
    target: str


def measure(ground, sizes):
    """One load on each path in turns, all processes up all the time."""
    with ground.site() as site:
        paths = _start(site)
        spans = {path.name: [] for path in paths}
        for path in paths:
            _drive(site, path, sizes.latency_per_s, sizes.latency_warm_s)
        for turn in range(sizes.latency_rounds):
            for path in paths:
                found = _drive(site, path, sizes.latency_per_s, sizes.latency_round_s)
                spans[path.name] += found
                ground.say(f"latency {turn + 1}: {path.name} p50 {percentile(found, 0.5) * MS_PER_S:.1f} ms")
    figures = {
        f"{name}_{label}_ms": percentile(values, ratio) * MS_PER_S
        for name, values in spans.items()
        for label, ratio in (("p50", 0.5), ("p99", 0.99))
    }
    return {
        **figures,
        "requests": len(spans["rampmeter"]),
        "ratio": figures["rampmeter_p50_ms"] / figures["relay_p50_ms"],
        "ratio_at_most": AT_MOST,
    }


def _start(site):
    settings = site.settings
    ours = [site.start("streams", "streams"), site.start("gpu", "gpu_consumers")]
    stops = site.create("relay.1", "relay.2", "relay.3", "relay.4")
    for number, (source, target) in enumerate(pairwise(stops), start=1):
        site.start(f"relay-{number}", "tests.benchmarks.relay", source, target)
    for child in ours:
        child.wait_ready()
    landing = catalog.landing(settings, Priority.MEDIUM, Length.SHORT)
    replies = settings.topic(catalog.default_reply_name(settings))
    return [
        Path("rampmeter", landing, replies),
        Path("relay", stops[0], stops[-1]),
        # As many topics as ours has: a stricter comparison than the one with three loops.
        Path("relay_of_two", stops[0], stops[-2]),
    ]


def _drive(site, path, per_s, seconds):
    """Send at a fixed pace whatever comes back; seconds from the intended time of each send to its answer."""
    due_s, spans, done = {}, [], threading.Event()
    with closing(clients.reader(site.settings)) as reader:
        _go_to_end(reader, path.target)
        collector = threading.Thread(target=_collect, args=(reader, due_s, spans, done), daemon=True)
        collector.start()
        _send(site, path, due_s, per_s, seconds)
        done.set()
        collector.join(SETTLE_LIMIT_S)
        if due_s:
            raise RuntimeError(f"{path.name}: {len(due_s)} requests without an answer")
    return spans


def _send(site, path, due_s, per_s, seconds):
    producer = clients.producer(site.settings)
    start_s = time.monotonic() + 0.2
    for n in range(int(per_s * seconds)):
        record, identity = request(n), uuid.uuid4().hex.encode()
        record["headers"] = [("rampmeter_id", identity)]
        if path.name != "rampmeter":
            record["key"] = identity
        at_s = start_s + n / per_s
        due_s[identity] = at_s
        producer.poll(0)
        time.sleep(max(0.0, at_s - time.monotonic()))
        producer.produce(path.source, **record)
    producer.flush(SETTLE_LIMIT_S)


def _collect(reader, due_s, spans, done):
    end_s = None
    while True:
        message = reader.poll(0.1)
        now_s = time.monotonic()
        if message is not None and message.error() is None and (at_s := due_s.pop(message.key(), None)) is not None:
            spans.append(now_s - at_s)
            if b'"outcome":"rejected' in message.value():
                raise RuntimeError("a request was rejected")
        if done.is_set():
            end_s = end_s or now_s + SETTLE_LIMIT_S / 2
            if not due_s or now_s > end_s:
                return


def _go_to_end(reader, topic):
    ends = [reader.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in range(PARTITIONS)]
    reader.assign([TopicPartition(topic, p, end) for p, end in enumerate(ends)])
