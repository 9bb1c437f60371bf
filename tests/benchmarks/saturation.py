"""The whole path under more than it can take: requests per second, CPU per request, and peak memory of each process."""

import time
from dataclasses import dataclass, field

from tests.benchmarks import processes
from tests.benchmarks.ground import await_count, wait_until
from topics import catalog

LIMIT_S = 300.0
MEMORY_EVERY_S = 1.0
OURS = ("streams", "gpu_consumer", "autoscaler")
MS_PER_S = 1000.0
MIB = 1024**2


@dataclass(slots=True)
class Load:
    """What one loaded run showed, by process."""

    requests: int
    seconds: float = 0.0
    cpu_s: dict = field(default_factory=dict)
    peak_bytes: dict = field(default_factory=dict)
    pss_bytes: dict = field(default_factory=dict)


def run(ground, sizes):
    """Put all requests at once, and wait until each is answered and settled."""
    with ground.site() as site:
        site.env["RAMPMETER_AUTOSCALER__TARGET"] = "dry-run"
        streams = site.start("streams", "streams")
        others = [site.start("gpu", "gpu_consumers"), site.start("autoscaler", "autoscaler")]
        for child in (streams, *others):
            child.wait_ready()
        pids = dict(zip(OURS, (streams.pid, *(child.pid for child in others)), strict=True))
        pids |= {"broker": ground.broker_pid, "redis": ground.redis_pid}
        load = Load(sizes.saturation_requests)
        settings = site.settings
        replies = site.counter([settings.topic(catalog.default_reply_name(settings))])
        before = {name: processes.cpu_s(pid) for name, pid in pids.items()}
        start_s = time.monotonic()
        site.put(load.requests)
        ground.say(f"saturation: {load.requests} requests put in {time.monotonic() - start_s:.1f} s")
        _watch(load, pids, replies, streams)
        load.seconds = time.monotonic() - start_s
        _require_whole_path(site, load.requests)
        # Settlement belongs to the bill.
        await_count(site.committed("streams", "usage"), load.requests, LIMIT_S, streams)
        load.cpu_s = {name: processes.cpu_s(pid) - before[name] for name, pid in pids.items()}
        load.peak_bytes = {name: processes.peak_bytes(pid) for name, pid in pids.items()}
    return load


def _watch(load, pids, replies, streams):
    looked_s = 0.0
    for at_s, _ in wait_until(replies, load.requests, LIMIT_S, streams):
        if at_s - looked_s >= MEMORY_EVERY_S:
            looked_s = at_s
            for name, pid in pids.items():
                load.pss_bytes[name] = max(load.pss_bytes.get(name, 0), processes.pss_bytes(pid))


def _require_whole_path(site, requests):
    """Every request took a lane: a reply that admission gave by itself would be cheap."""
    on_lanes = site.counter(catalog.lanes(site.settings, "default"))()
    if on_lanes < requests:
        raise RuntimeError(f"only {on_lanes} of {requests} requests were admitted")


def throughput(load):
    """Figures of the part `saturation`."""
    cpu_ms = {name: cpu_s * MS_PER_S / load.requests for name, cpu_s in load.cpu_s.items()}
    return {
        "requests": load.requests,
        "per_s": load.requests / load.seconds,
        "cpu_ms_per_request": cpu_ms,
        "cpu_ms_per_request_ours": sum(cpu_ms[name] for name in OURS),
    }


def memory(load):
    """Figures of the part `memory`."""
    return {
        "peak_mib": {name: size / MIB for name, size in load.peak_bytes.items()},
        "peak_pss_mib": {name: size / MIB for name, size in load.pss_bytes.items()},
        "pss_mib_in_all": sum(load.pss_bytes.values()) / MIB,
    }
