"""The table of streams after restarts: as small as before, once its windows have passed."""

import json

from tests.benchmarks.ground import Ground
from tests.support.streams_worker import StreamsWorker, wait_until
from topics.local_broker import LocalBroker
from topics.local_redis import LocalRedis

RESTARTS, PER_RESTART = 5, 40
SPEND_WINDOW_S, SPEND_KEPT_S = 1, 4
ROWS = "rampmeter_streams_spend_rows"


def rows_of_an_own_site(folder, say):
    """The same on servers of its own."""
    with LocalBroker(folder / "rows-kafka") as broker, LocalRedis(folder / "rows-redis") as redis:
        ground = Ground(broker.bootstrap_servers, redis.url, broker.pid, redis.pid, folder, say)
        with ground.site() as site:
            return rows_after_restarts(site, folder)


def rows_after_restarts(site, log_dir):
    """Rows of the table before each restart, and when its windows have passed after it."""
    site.env |= _short_windows()
    site.start("gpu", "gpu_consumers").wait_ready()
    worker = StreamsWorker(site.env, log_dir / "worker.log").start()
    usage = site.counter([site.settings.topic("usage")])
    done = site.committed("streams", "usage")
    before, after = [], []
    try:
        for restart in range(RESTARTS):
            site.put(PER_RESTART)
            sent = (restart + 1) * PER_RESTART
            wait_until(lambda sent=sent: usage() >= sent and done() == usage(), 60, worker.log)
            before.append(worker.metric(ROWS))
            worker.kill()
            worker = StreamsWorker(site.env, log_dir / "worker.log").start()
            wait_until(lambda worker=worker: worker.metric(ROWS) == 0.0, 60, lambda: str(worker.metric(ROWS)))  # noqa: B023
            after.append(worker.metric(ROWS))
    finally:
        worker.kill()
    return before, after


def _short_windows():
    """Settings under which every row of the table is gone soon."""
    return {
        "RAMPMETER_STREAMS__SPEND_WINDOW_S": str(SPEND_WINDOW_S),
        "RAMPMETER_STREAMS__SPEND_KEPT_S": str(SPEND_KEPT_S),
        "RAMPMETER_STREAMS__HISTORY": json.dumps({"window_s": SPEND_WINDOW_S, "kept_s": SPEND_KEPT_S}),
        "RAMPMETER_STREAMS__SESSION_TIMEOUT_S": "4",
    }
