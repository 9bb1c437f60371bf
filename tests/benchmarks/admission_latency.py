"""From the landing record to its lane record, at half of what the worker can take; by the records' own timestamps."""

import time

from confluent_kafka import TopicPartition

from tests.benchmarks.admission import Pace
from tests.benchmarks.ground import PARTITIONS, await_count, percentile, request, wait_until
from topics import catalog, clients, codec

LIMIT_S = 120.0
AT_MOST_MS = 50.0
MS_PER_S = 1000.0
WARM_RATIO = 0.2
"""Share of each run that is not looked at."""
LOAD_RATIO = 0.5
WARM_PER_S = 2000.0
"""Until the broker's compiler has seen its work."""
OVER_RATIO = 1.2
PAUSE_S = 0.005


def measure(ground, sizes):
    """Saturate a worker that has started, then drive it at half of that."""
    with ground.site() as site:
        child = site.start("streams", "streams")
        child.wait_ready()
        lanes = catalog.lanes(site.settings, "default")
        count = site.counter(lanes)
        _drive(site, WARM_PER_S, sizes.admission_warm_s)
        warm = int(WARM_PER_S * sizes.admission_warm_s)
        await_count(count, warm, LIMIT_S, child)
        alone = _saturate(site, child, count, sizes.admission_requests)
        driven = int(OVER_RATIO * alone.per_s * sizes.admission_drive_s)
        saturation = _saturate_beside(site, count, OVER_RATIO * alone.per_s, sizes.admission_drive_s)
        await_count(count, warm + sizes.admission_requests + driven, LIMIT_S, child)
        per_s = LOAD_RATIO * saturation
        ground.say(
            f"admission_latency: {saturation:,.0f}/s at saturation ({alone.per_s:,.0f} without sender), now half"
        )
        begun_s = _drive(site, per_s, sizes.admission_latency_s)
        total = warm + sizes.admission_requests + driven + int(per_s * sizes.admission_latency_s)
        await_count(count, total, LIMIT_S, child)
        spans = _spans(site, lanes, total, begun_s + WARM_RATIO * sizes.admission_latency_s)
    return {
        "saturation_per_s": saturation,
        "saturation_without_sender_per_s": alone.per_s,
        "load_per_s": per_s,
        "requests": len(spans),
        "p50_ms": percentile(spans, 0.5) * MS_PER_S,
        "p99_ms": percentile(spans, 0.99) * MS_PER_S,
        "p99_ms_at_most": AT_MOST_MS,
    }


def _saturate(site, child, count, requests):
    before = count()
    site.put(requests)
    begin = None
    for now in wait_until(count, before + requests, LIMIT_S, child):
        begin = begin or (now if now[1] - before >= WARM_RATIO * requests else None)
    return Pace((now[1] - begin[1]) / max(now[0] - begin[0], 0.1), 0.0)


def _saturate_beside(site, count, per_s, seconds):
    """What is admitted a second while more than that is sent: sender, broker, Redis and worker share the cores."""
    before, start_s = count(), time.monotonic()
    _drive(site, per_s, seconds)
    return (count() - before) / (time.monotonic() - start_s)


def _drive(site, per_s, seconds):
    """Send at a fixed pace, whatever becomes of it; the wall time of the beginning."""
    producer, landing = clients.producer(site.settings), site.landing()
    begun_s, start_s = time.time(), time.monotonic()
    for n in range(int(per_s * seconds)):
        while time.monotonic() < start_s + n / per_s:
            producer.poll(PAUSE_S)
        producer.produce(landing[n % len(landing)], **request(n))
    if producer.flush(LIMIT_S):
        raise RuntimeError("the broker did not take all records")
    return begun_s


def _spans(site, lanes, total, since_s):
    """Seconds from landing to lane of all that landed since then."""
    reader, spans, seen = clients.reader(site.settings), [], 0
    reader.assign([TopicPartition(lane, partition, 0) for lane in lanes for partition in range(PARTITIONS)])
    end_s = time.monotonic() + LIMIT_S
    while seen < total and time.monotonic() < end_s:
        for message in reader.consume(1000, timeout=1.0):
            if message.error() is None:
                seen += 1
                landed_s = codec.decode_work(message.value()).request.arrived_s
                if landed_s >= since_s:
                    spans.append(message.timestamp()[1] / MS_PER_S - landed_s)
    reader.close()
    if seen < total:
        raise RuntimeError(f"only {seen} of {total} records on the lanes")
    return spans
