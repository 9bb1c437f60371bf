"""All that a request meets, as processes on topics of their own: admission, a simulated engine, the HTTP door."""

from contextlib import contextmanager

import pytest

from tests.support.door import Door
from tests.support.gpu import Consumer
from tests.support.streams_worker import Site, StreamsWorker, wait_until
from topics.records import Priority

ENOUGH = {"refill_units_per_s": 1e6, "warm_up_s": 0}


@contextmanager
def running(broker, redis_url, folder, *, poor_units_per_s, env=(), door=(), **streams):
    """A `Site` with `worker`, `consumer` and `door`; budgets bind only the tenant `poor`."""
    poor = {"refill_units_per_s": poor_units_per_s, "burst_s": 100.0, "warm_up_s": 0}
    site = Site(
        broker, redis_url, 4, tenant_budget=ENOUGH, tenant_budgets={"poor": poor}, global_budget=ENOUGH,
        pool_budget=ENOUGH, class_budgets=dict.fromkeys(Priority, ENOUGH), **streams,
    )  # fmt: skip
    site.env |= dict(env)
    site.worker = StreamsWorker(site.env, folder / "worker.log").start(wait=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in site.env.items():
            if name != "RAMPMETER_STREAMS":
                patch.setenv(name, value)
        site.consumer = Consumer(folder / "gpu.log", engine="simulated", speed=5)
    site.door = Door(site.env, folder, **dict(door))
    try:
        wait_until(site.worker.is_ready, 60, site.worker.log)
        site.consumer.wait_ready()
        yield site
    finally:
        assert site.door.stop() == 0, site.door.log()
        assert site.consumer.terminate() == 0
        site.worker.stop()
        site.close()
