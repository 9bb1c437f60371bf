"""What lies between the lanes and the engine: throughput beside the bare engine, CPU per request and chunk, memory."""

import os
import subprocess
import sys
import time
import uuid
from statistics import median

import msgspec

from tests.benchmarks import processes
from tests.benchmarks.ground import PARTITIONS, await_count, wait_until
from topics import catalog, codec
from topics.records import Length, Origin, Price, Priority, ReplyAddress, Request, Tier, Work

SPEED = 2.0
PROMPT_TOKENS, OUTPUT_TOKENS = 100, 40
MIDDLE = (0.2, 0.9)
"""Part of a run that counts: the engine is full."""
LIMIT_S = 300.0
RATIO_AT_LEAST = 0.97
CPU_MS_AT_MOST, CHUNK_US_AT_MOST = 1.0, 20.0
GROWTH_AT_MOST = 1.05
SETTLE_S = 1.0
"""After the last answer: claims are marked and offsets committed."""
WARM_LOTS, LOTS = 2, 2
"""All at once each; the first ones show how much a burst takes, the others must not take more."""
MS_PER_S, US_PER_S = 1e3, 1e6
MIB = 1024**2


def measure(ground, sizes):
    """All figures of the part `consumer`."""
    paces = {"direct": [], "through": []}
    for turn in range(sizes.consumer_rounds):
        paces["direct"].append(_direct(sizes.consumer_requests)[0])
        paces["through"].append(_through(ground, sizes.consumer_requests))
        ground.say(f"consumer {turn + 1}: {paces['direct'][-1]:.1f}/s direct, {paces['through'][-1]:.1f}/s through")
    direct, through = median(paces["direct"]), median(paces["through"])
    null_per_s, cpu_s, growth = _null(ground, sizes)
    return {
        "direct_per_s": direct,
        "through_per_s": through,
        "ratio": through / direct,
        "ratio_at_least": RATIO_AT_LEAST,
        "cpu_ms": cpu_s * MS_PER_S,
        "cpu_ms_at_most": CPU_MS_AT_MOST,
        "per_s_without_engine": null_per_s,
        "chunk_us": _chunk_s(ground, sizes) * US_PER_S,
        "chunk_us_at_most": CHUNK_US_AT_MOST,
        "memory_growth": growth,
        "memory_growth_at_most": GROWTH_AT_MOST,
    }


def body():
    """A chat body whose answer has `OUTPUT_TOKENS`."""
    message = {"role": "user", "content": "x" * 4 * PROMPT_TOKENS}
    return msgspec.json.encode({"model": "llama-3-8b", "messages": [message], "simulated_output_tokens": OUTPUT_TOKENS})


def _engine(**more):
    return {"RAMPMETER_GPU__ENGINE": "simulated", "RAMPMETER_GPU__SPEED": str(SPEED), **more}


def _direct(requests, stream=""):
    """Requests a second, CPU seconds and pieces of the bare engine."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.direct_engine", str(requests), stream],
        env={**os.environ, **_engine(), "PYTHONPATH": str(processes.ROOT)},
        cwd=processes.ROOT, check=True, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    per_s, cpu_s, pieces = map(float, done.stdout.split())
    return per_s, cpu_s, pieces


def _through(ground, requests):
    with ground.site() as site:
        site.env |= _engine()
        child, replies = _started(site)
        _put(site, requests)
        at_s = []
        for now_s, count in wait_until(replies, requests, LIMIT_S, child):
            at_s.append((now_s, count))
    inside = [(s, n) for s, n in at_s if MIDDLE[0] * requests <= n <= MIDDLE[1] * requests]
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def _null(ground, sizes):
    """Requests a second, CPU seconds of one, and growth of memory, on an engine that answers at once."""
    lot = sizes.consumer_lot
    with ground.site() as site:
        child, replies = _started(site)
        for number in range(1, WARM_LOTS + 1):
            _put(site, lot)
            await_count(replies, number * lot, LIMIT_S, child)
        time.sleep(SETTLE_S)
        begin_s, cpu_s, size = time.monotonic(), processes.cpu_s(child.pid), processes.resident_bytes(child.pid)
        for number in range(1, LOTS + 1):
            _put(site, lot)
            await_count(replies, (WARM_LOTS + number) * lot, LIMIT_S, child)
        requests = LOTS * lot
        per_s = requests / (time.monotonic() - begin_s)
        time.sleep(SETTLE_S)
        used_s = processes.cpu_s(child.pid) - cpu_s
        return per_s, used_s / requests, processes.resident_bytes(child.pid) / size


def _chunk_s(ground, sizes):
    """CPU seconds of a streamed chunk: what the same requests cost more when they stream, less the engine's part."""
    used_s, chunks = {}, 0
    for stream in (False, True):
        with ground.site() as site:
            site.env |= _engine()
            child, replies = _started(site)
            settled = site.counter([site.settings.topic("usage")])
            before_s = processes.cpu_s(child.pid)
            _put(site, sizes.consumer_requests, stream=stream)
            await_count(settled, sizes.consumer_requests, LIMIT_S, child)
            used_s[stream] = processes.cpu_s(child.pid) - before_s
            chunks = replies() - sizes.consumer_requests
    _, plain_s, _ = _direct(sizes.consumer_requests)
    _, streamed_s, pieces = _direct(sizes.consumer_requests, "stream")
    return (used_s[True] - used_s[False]) / chunks - (streamed_s - plain_s) / pieces


def _started(site):
    child = site.start("gpu", "gpu_consumers")
    child.wait_ready()
    return child, site.counter([site.settings.topic(catalog.default_reply_name(site.settings))])


def _put(site, count, *, stream=False):
    """Admitted work on the partitions of one lane."""
    settings = site.settings
    lane = catalog.lane(settings, "default", Tier.MEDIUM, Length.SHORT)
    reply = ReplyAddress(topic=settings.topic(catalog.default_reply_name(settings)))
    cost_units = settings.models["llama-3-8b"].units(PROMPT_TOKENS, OUTPUT_TOKENS)
    price = Price(
        pool="default", length=Length.SHORT, expected_output_tokens=OUTPUT_TOKENS, cost_units=round(cost_units, 3)
    )
    raw = msgspec.Raw(body())

    def record(number):
        request = Request(
            id=f"bench-{uuid.uuid4().hex}", tenant="bench", model="llama-3-8b", priority=Priority.MEDIUM,
            length_claim=Length.SHORT, reply=reply, origin=Origin(topic="bench", partition=0, offset=number),
            arrived_s=time.time(), prompt_tokens=PROMPT_TOKENS, max_tokens=OUTPUT_TOKENS, stream=stream, body=raw,
        )  # fmt: skip
        value = codec.encode(Work(request=request, price=price, admitted_s=time.time()))
        return {"topic": lane, "key": request.id.encode(), "value": value, "partition": number % PARTITIONS}

    site.produce(map(record, range(count)))
