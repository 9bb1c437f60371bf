"""`python -m streams`: one worker.  Builds the parts, hands in the clock, and lets Faust run."""

from topics import early  # noqa: F401 - before all else

# isort: split

import asyncio
import logging
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import faust
from confluent_kafka import KafkaException
from faust.types import TP
from structlog import get_logger

from streams import admit, agents, app, beginning, metrics, series
from streams.admit import Admission
from streams.apply import Writer
from streams.breaker import Breaker
from streams.budgets import Budgets
from streams.control import Controls
from streams.drift import Drift
from streams.estimates import Estimates
from streams.fallback import Fallback
from streams.fleet import Fleet
from streams.identity import Identities
from streams.intake import Pricing
from streams.limits import LiveLimits
from streams.order_log import OrderLog
from streams.outbox import Outbox, Outgoing
from streams.progress import Progress
from streams.promote import Promoter
from streams.pump import LOOPS, Pump
from streams.reality import Reality
from streams.rebuild import Rebuild
from streams.recall import Recall
from streams.settings import StreamsSettings
from streams.settle import Settling, settling
from streams.shadow import Shadow
from streams.tables import spend_table
from topics import admin, catalog, clients, process, settings, tracing
from topics.clock import SystemClock
from topics.status import StatusServer

_log = get_logger()
_REFRESH_TOPICS_S = 5.0
"""Between two looks, and for how long one waits.  Too small: load on the broker, and a slow one looks away.  Too
large: before it is noticed to be away, commits look stalled."""
_STOP_LIMIT_S = 25.0
_TELL_EVERY_S = 0.5
_MISSING = {
    "kafka": "Kafka does not answer; work waits",
    "redis": "Redis does not answer; each class goes by its degrade mode",
}
_KNOWN_WITHIN_S = 5.0


class _Owned:
    """What of the work is this worker's now, by Faust's assignment."""

    def __init__(self, faust_app: faust.App, loaded: StreamsSettings) -> None:
        self._app, self._usage = faust_app, loaded.topic("usage")
        self._landing = {spot.topic for spot in catalog.landings(loaded)}
        self._count = len(self._landing) * loaded.topics.landing_partitions

    def ratio(self) -> float:
        """Landing partitions of this worker over all; over all workers they sum to at most 1."""
        return sum(tp.topic in self._landing for tp in app.owned(self._app)) / self._count

    def leads(self) -> bool:
        """Whether this worker does what one of all does: the owner of the first partition of `usage`."""
        return TP(self._usage, 0) in app.owned(self._app)


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
                self.counts = admin.partition_counts(self._settings, _REFRESH_TOPICS_S)
            except KafkaException as error:  # the last counts hold until the broker answers again
                if metrics.note("kafka", available=False):
                    _log.warning("kafka_unavailable", error=error.args[0].str(), doing="work waits; nothing is lost")
            else:
                if metrics.note("kafka", available=True):
                    _log.info("kafka_available")


def build(loaded: StreamsSettings, datadir: Path) -> tuple[faust.App, Progress]:
    """Put the worker together."""
    clock = SystemClock()
    name = f"{_role(loaded)}-{socket.gethostname()}-{os.getpid()}"
    faust_app = app.build(loaded, datadir)
    owned = _Owned(faust_app, loaded)
    fleet = Fleet(loaded, clock)
    writer = Writer(loaded, clock, fleet, name)
    breaker = Breaker(clock, loaded.streams.degrade)
    limits = LiveLimits(loaded.streams)
    budgets = Budgets(clients.redis_async(loaded), loaded, breaker, limits, name)
    fallback = Fallback(loaded, clock, owned.ratio, limits)
    recall = Recall(loaded, clock)
    breaker.on_close(fallback.reset)
    order_log = OrderLog(loaded, clock, owned.leads)
    controls = Controls(loaded, clock, order_log, limits.set)
    outbox = Outbox(loaded, loaded.streams.delivery_s)
    shadow = None if loaded.streams.shadow is None else Shadow(loaded, clock, outbox, budgets, fleet)
    sends = shadow or outbox
    admission = Admission(admit.Parts(loaded, clock, budgets, writer, sends, fleet, controls, fallback, recall))
    estimates = Estimates(loaded, clock)
    reply_topics = _ReplyTopics(loaded)
    pricing = Pricing(loaded, clock, lambda: reply_topics.counts, name, estimates, Identities(loaded))
    progress = Progress(clock, loaded.streams.live_after_s, loaded.streams.recovery_limit_s)
    pump = Pump(admission.run, loaded.streams.batch_events)
    parts = agents.Parts(loaded, clock, pricing, admission, pump, writer, progress)
    progress.watch(faust_app)
    followers: list[_Follower] = [fleet, estimates, controls]
    loops = [
        *[pump.run] * LOOPS,
        Rebuild(loaded, clock, budgets, limits).run,
        _looking(admission, loaded.streams.fair.look_every_s),
        _telling(order_log, admission, writer, loaded.topic("control")),
    ]
    if shadow is None:
        table = spend_table(faust_app, loaded.streams, loaded.topics.landing_partitions, clock)
        bury = partial(agents.bury, parts)
        settle = settling(
            Settling(loaded, clock, budgets, admission.send, bury, table, estimates, limits, recall, name)
        )
        agents.register(faust_app, parts, settle)
        loops.append(Drift(loaded.pools, budgets, owned.leads).run)
        if loaded.streams.policy != "fifo":
            promoters = [Promoter(loaded, pool, clock, budgets, writer, admission.send, fleet) for pool in loaded.pools]
            loops.append(_promoting(faust_app, owned, promoters, loaded.streams.promote_every_s))
    else:
        agents.register_intake(faust_app, parts)
        followers.append(Reality(loaded, shadow.note))
        loops += shadow.loops(pump.carry_out)
    _run_beside(faust_app, loops)
    _follow(faust_app, followers, outbox, (fallback.share_changed, recall.partitions_came))
    controls.await_current()  # else what was cancelled or paused before would be admitted
    estimates.wait_ready(_KNOWN_WITHIN_S)  # else the first requests are priced by what they declare
    return faust_app, progress


def _role(loaded: StreamsSettings) -> str:
    return "streams" if loaded.streams.shadow is None else f"shadow-{loaded.streams.shadow}"


class _Follower(Protocol):
    """Follows a topic in a thread."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End."""


def _follow(
    faust_app: faust.App, followers: Sequence[_Follower], outbox: Outbox, on_assigned: Sequence[Callable[[], None]]
) -> None:
    for follower in followers:  # before the first record is read: what they know decides about it
        follower.start()

    @faust_app.on_partitions_assigned.connect
    async def owned(*_: object, **__: object) -> None:
        for note in on_assigned:
            note()

    @faust_app.on_before_shutdown.connect
    async def close(*_: object, **__: object) -> None:
        _end_within(_STOP_LIMIT_S)
        for follower in followers:
            follower.stop()
        await asyncio.to_thread(outbox.close)


def _end_within(limit_s: float) -> None:
    """Faust waits for ever for a broker that is gone; what is not committed by then comes again to the next worker."""
    timer = threading.Timer(limit_s, os._exit, (process.EXIT_UNAVAILABLE,))
    timer.daemon = True
    timer.start()


def _run_beside(faust_app: faust.App, loops: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Loops beside the agents; one that fails is a bug and ends the process."""

    def guarded(loop: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            with agents.ending_the_process(loop.__qualname__):
                await loop()

        return run

    for loop in loops:
        faust_app.task(guarded(loop))


def _looking(admission: Admission, every_s: float) -> Callable[[], Awaitable[None]]:
    async def look() -> None:
        """Ask again for what waits in memory, for ever."""
        while True:
            await asyncio.sleep(every_s)
            await admission.look()

    return look


def _promoting(
    faust_app: faust.App, owned: _Owned, promoters: list[Promoter], every_s: float
) -> Callable[[], Awaitable[None]]:
    async def promote() -> None:
        while True:
            await asyncio.sleep(every_s)
            if owned.leads() and not faust_app.rebalancing:  # so that one worker does it for all
                for promoter in promoters:
                    await promoter.step()

    return promote


def _telling(order_log: OrderLog, admission: Admission, writer: Writer, topic: str) -> Callable[[], Awaitable[None]]:
    async def tell() -> None:
        """Write applied orders to the decision log, and forget old cancels."""
        while True:
            await asyncio.sleep(_TELL_EVERY_S)
            forgotten = [Outgoing(topic, key, None) for key in order_log.take_tombstones()]
            await admission.send([*map(writer.journal.control, order_log.take_orders()), *forgotten])

    return tell


def main() -> int:
    """Check what must be there, then run until a signal."""
    loaded = settings.load(StreamsSettings)
    process.configure_logs(loaded, _role(loaded))
    clients.require_kafka(loaded)
    clients.require_redis(loaded)
    admin.require(loaded)
    if loaded.streams.shadow is not None:
        beginning.begin_now(loaded, loaded.streams.shadow)
    with (
        tempfile.TemporaryDirectory(prefix="rampmeter-streams-") as folder,  # Faust wants one; tables are in memory
        tracing.telling(loaded, "rampmeter-streams"),
    ):
        _run(loaded, *build(loaded, Path(folder)))
    return 0


def _run(loaded: StreamsSettings, faust_app: faust.App, progress: Progress) -> None:
    def ready() -> str | None:
        if faust_app.rebalancing or not app.owned(faust_app):
            return "no partitions are assigned yet"
        missing = metrics.missing()
        return None if missing is None else _MISSING[missing]

    series.begin(loaded)
    registry = metrics.registry(loaded.streams.shadow)
    status = StatusServer(
        loaded.status_host, loaded.status_port, live=progress.complaint, ready=ready, registry=registry
    )
    status.start()
    _log.info("started", status=status.url, identity=loaded.identity.mode)
    if loaded.identity.mode == "trusted":
        _log.warning(
            "producers_are_trusted", effect="tenant and class are what a producer says: see RAMPMETER_IDENTITY"
        )
    logging.getLogger("faust").setLevel(logging.WARNING)
    # A record per fetch and partition in good times, twenty lines a second while the broker is away.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    # For its spinner's escape codes, which it also writes at the very end: so never closed.
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    worker = faust.Worker(faust_app, loglevel="WARN", quiet=True, redirect_stdouts=False, stdout=nowhere)
    process.keep_start_up()
    worker.execute_from_commandline()


if __name__ == "__main__":
    sys.exit(process.exit_status(main))
