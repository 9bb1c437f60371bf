"""Memory under a steady load for long: does what the processes hold stay the same?"""

import threading
import time
from statistics import median

from tests.benchmarks import processes
from tests.benchmarks.ground import await_count, request
from topics import catalog, clients

AT_MOST = 1.05
EVERY_S = 1.0
LIMIT_S = 120.0
PART = 0.2
"""The first and the last share of what was sampled after the warm-up are compared."""
MIB = 1024**2


def measure(ground, sizes):
    """Steady load on a worker and a consumer whose engine takes no time."""
    with ground.site() as site:
        children = {"streams": site.start("streams", "streams"), "gpu_consumer": site.start("gpu", "gpu_consumers")}
        for child in children.values():
            child.wait_ready()
        samples = {name: [] for name in children}
        requests = int(sizes.soak_per_s * sizes.soak_s)
        sender = threading.Thread(target=_send, args=(site, sizes.soak_per_s, requests), daemon=True)
        start_s = time.monotonic()
        sender.start()
        while (at_s := time.monotonic() - start_s) < sizes.soak_s:
            for name, child in children.items():
                child.check()
                if at_s >= sizes.soak_warm_s:
                    samples[name].append((at_s, processes.resident_bytes(child.pid)))
            time.sleep(EVERY_S)
        sender.join()
        replies = site.counter([site.settings.topic(catalog.default_reply_name(site.settings))])
        await_count(replies, requests, LIMIT_S, children["streams"])
    return {"requests": requests, **_figures(samples)}


def _figures(samples):
    found = {"start_mib": {}, "end_mib": {}, "mib_per_min": {}}
    for name, sampled in samples.items():
        few = max(1, int(PART * len(sampled)))
        (first_s, first), (last_s, last) = (
            (median(s for s, _ in part), median(size for _, size in part)) for part in (sampled[:few], sampled[-few:])
        )
        found["start_mib"][name], found["end_mib"][name] = first / MIB, last / MIB
        found["mib_per_min"][name] = (last - first) / MIB / max(last_s - first_s, EVERY_S) * 60
    ratio = max(found["end_mib"][name] / found["start_mib"][name] for name in samples)
    return {**found, "ratio": ratio, "ratio_at_most": AT_MOST}


def _send(site, per_s, requests):
    producer, landing = clients.producer(site.settings), site.landing()
    start_s = time.monotonic()
    for n in range(requests):
        producer.poll(0)
        time.sleep(max(0.0, start_s + n / per_s - time.monotonic()))
        producer.produce(landing[n % len(landing)], **request(n))
    producer.flush(LIMIT_S)
