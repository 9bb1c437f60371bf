"""`python -m streams`: one worker.  Builds the parts, hands in the clock, and lets Faust run."""

import asyncio
import logging
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import faust
from confluent_kafka import KafkaException
from structlog import get_logger

from streams import agents, app, metrics
from streams.admit import Admission
from streams.apply import Writer
from streams.budgets import Budgets
from streams.fleet import Fleet
from streams.intake import Pricing
from streams.outbox import Outbox
from streams.progress import Progress
from streams.promote import Promoter
from streams.settings import StreamsSettings
from streams.tables import spend_table
from topics import admin, clients, process, settings
from topics.clock import SystemClock
from topics.status import StatusServer

_log = get_logger()
_REFRESH_TOPICS_S = 10.0
_STOP_LIMIT_S = 25.0


class _ReplyTopics:
    """Partition counts of the topics that exist, refreshed in the background; also how we know that Kafka is there."""

    def __init__(self, loaded: StreamsSettings) -> None:
        self._settings = loaded
        self.counts: Mapping[str, int] = admin.partition_counts(loaded)
        threading.Thread(target=self._refresh, name="topics", daemon=True).start()

    def _refresh(self) -> None:
        while True:
            threading.Event().wait(_REFRESH_TOPICS_S)
            try:
                self.counts = admin.partition_counts(self._settings)
            except KafkaException as error:  # the last counts hold until the broker answers again
                if metrics.note("kafka", available=False):
                    _log.warning("kafka_unavailable", error=error.args[0].str(), doing="work waits; nothing is lost")
            else:
                if metrics.note("kafka", available=True):
                    _log.info("kafka_available")


def build(loaded: StreamsSettings, datadir: Path) -> tuple[faust.App, Progress]:
    """Put the worker together."""
    clock = SystemClock()
    name = f"streams-{socket.gethostname()}-{os.getpid()}"
    reply_topics = _ReplyTopics(loaded)
    fleet = Fleet(loaded, clock, loaded.streams.telemetry_stale_s)
    writer = Writer(loaded, clock, fleet, name)
    budgets = Budgets(clients.redis_async(loaded), loaded)
    outbox = Outbox(loaded)
    progress = Progress(clock, loaded.streams.live_after_s)
    admission = Admission(loaded, clock, budgets, writer, outbox)
    pricing = Pricing(loaded, clock, lambda: reply_topics.counts, name)
    faust_app = app.build(loaded, datadir)
    parts = agents.Parts(loaded, clock, pricing, admission, budgets, writer, progress)
    agents.register(faust_app, parts, spend_table(faust_app, loaded.streams, loaded.topics.landing_partitions))
    progress.watch(faust_app)
    if loaded.streams.policy != "fifo":
        _promote(faust_app, [Promoter(loaded, pool, clock, budgets, writer, outbox) for pool in loaded.pools], loaded)

    @faust_app.task
    async def follow_telemetry() -> None:
        fleet.start()

    @faust_app.on_before_shutdown.connect
    async def close(*_: object, **__: object) -> None:
        _end_within(_STOP_LIMIT_S)
        fleet.stop()
        await asyncio.to_thread(outbox.close)

    return faust_app, progress


def _end_within(limit_s: float) -> None:
    """Faust waits for ever for a broker that is gone; what is not committed by then comes again to the next worker."""
    timer = threading.Timer(limit_s, os._exit, (process.EXIT_UNAVAILABLE,))
    timer.daemon = True
    timer.start()


def _promote(faust_app: faust.App, promoters: list[Promoter], loaded: StreamsSettings) -> None:
    usage = loaded.topic("usage")

    @faust_app.timer(loaded.streams.promote_every_s)
    async def promote() -> None:
        # The owner of one partition promotes for all, so that one worker does it.
        if any(tp.topic == usage and tp.partition == 0 for tp in faust_app.assignor.assigned_actives()):
            for promoter in promoters:
                await promoter.step()


def main() -> int:
    """Check what must be there, then run until a signal."""
    loaded = settings.load(StreamsSettings)
    process.configure_logs(loaded, "streams")
    clients.require_kafka(loaded)
    clients.require_redis(loaded)
    admin.require(loaded)
    with tempfile.TemporaryDirectory(prefix="rampmeter-streams-") as folder:  # Faust wants one; tables are in memory
        _run(loaded, *build(loaded, Path(folder)))
    return 0


def _run(loaded: StreamsSettings, faust_app: faust.App, progress: Progress) -> None:
    def ready() -> str | None:
        if faust_app.rebalancing or not faust_app.assignor.assigned_actives():
            return "no partitions are assigned yet"
        missing = metrics.missing()
        return None if missing is None else f"{missing.capitalize()} does not answer; work waits"

    status = StatusServer(loaded.status_host, loaded.status_port, live=progress.complaint, ready=ready)
    status.start()
    _log.info("started", status=status.url, trust="headers are believed: only trusted producers may write")
    logging.getLogger("faust").setLevel(logging.WARNING)
    # A record per fetch and partition in good times, twenty lines a second while the broker is away.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    # For its spinner's escape codes, which it also writes at the very end: so never closed.
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    worker = faust.Worker(faust_app, loglevel="WARN", quiet=True, redirect_stdouts=False, stdout=nowhere)
    worker.execute_from_commandline()


if __name__ == "__main__":
    sys.exit(process.exit_status(main))
