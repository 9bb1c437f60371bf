"""One consumer process: its parts, its life, its end.

Threads of ours beside the loop: the poller owns the Kafka consumer, the outbox waits for the broker's answers, and
maintenance does what can wait.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from gpu_consumers import wiring
from gpu_consumers.answering import Writer
from gpu_consumers.borrowing import LOOK_S, Borrower
from gpu_consumers.claims import Claims, ClaimsUnavailable, Terms
from gpu_consumers.control import Follower
from gpu_consumers.dispatch import Dispatcher
from gpu_consumers.engine import Engine
from gpu_consumers.fleet import Fleet
from gpu_consumers.gpu import GpuProbe
from gpu_consumers.health import Health
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.maintenance import Maintenance
from gpu_consumers.metrics import Metrics
from gpu_consumers.outbox import Outbox
from gpu_consumers.parcels import OneByOne, Together
from gpu_consumers.parts import Parts
from gpu_consumers.posting import Post, Poster
from gpu_consumers.report import Report
from gpu_consumers.running import Runner
from gpu_consumers.settings import FLUSH_S, LEAVE_S, STOP_S, GpuSettings
from gpu_consumers.settling import Settler
from gpu_consumers.tasks import end
from gpu_consumers.telemetry import Reporter, Sources
from gpu_consumers.unclaimed import Unclaimed
from gpu_consumers.warm_up import warm_up
from topics import clients, keys
from topics.clock import Clock

log = structlog.get_logger()

_DRAIN_POLL_S = 0.02
_TICK_S = 0.1
_LOOK_S = 1.0


class GpuConsumer:
    """Built and run on one event loop."""

    def __init__(self, settings: GpuSettings, engine: Engine, clock: Clock, registry: CollectorRegistry) -> None:
        loop = asyncio.get_running_loop()
        gpu = settings.gpu
        self._settings, self._gpu, self._engine, self._clock = settings, gpu, engine, clock
        self._redis = clients.redis_async(settings)
        metrics = Metrics(registry, gpu.engine)
        owner = wiring.incarnation(gpu.consumer_id)
        goes_without = gpu.without_redis == "run"
        terms = Terms(owner, keys.of(settings), gpu.lease_s, settings.dedupe_window_s, gpu.delivery_s, goes_without)
        self._claims = Claims(self._redis, clock, terms)
        writer = Writer(settings, gpu.consumer_id)
        self._outbox = Outbox(
            wiring.kafka_producer(settings),
            lambda: wiring.kafka_producer(settings, batch_num_messages=1),
            lambda: loop.call_soon_threadsafe(self._outbox.deliver),
        )
        self._together = Together(self._claims, lambda: loop.call_soon_threadsafe(self._together.deliver))
        is_transactional = gpu.delivery == "transactional"
        carrier = self._together if is_transactional else OneByOne(self._outbox)
        self._poster = Poster(settings, writer, Post(self._outbox, carrier, self._claims), clock, metrics)
        inbox: wiring.Inbox = Mailbox(lambda: loop.call_soon_threadsafe(self._dispatcher.wake))
        commits = wiring.transactions(settings, self._together, clock, metrics) if is_transactional else None
        self._poller = wiring.poller(settings, inbox, commits, clock, metrics)
        self._settler = Settler(self._poster, writer, self._claims, self._poller.done, clock, metrics)
        self._unclaimed = self._settler.unclaimed = Unclaimed(settings, self._claims) if goes_without else None
        self._runner = Runner(wiring.with_window(gpu), engine, self._settler, clock)
        orders: wiring.Orders = Mailbox(lambda: loop.call_soon_threadsafe(self._dispatcher.wake))
        self._told_to_drain = asyncio.Event()
        self._control = Follower(settings, clock, orders, lambda: loop.call_soon_threadsafe(self._told_to_drain.set))
        parts = Parts(settings, inbox, orders, self._claims, self._settler, self._runner, clock, metrics)
        self._dispatcher = Dispatcher(parts)
        self._runner.on_room = self._dispatcher.wake
        self._runner.on_fenced = self._settler.on_fenced = self._dispatcher.look_again
        self._runner.on_handed_over = self._dispatcher.give_back
        self._runner.on_untried = self._dispatcher.failures.untried
        self._runner.on_broken = self._dispatcher.failures.broke
        self._fleet = Fleet(settings, wiring.lanes(settings), clock)
        self._borrower = Borrower(settings, self._fleet, self._poller, self._dispatcher, clock)
        sources = Sources(self._poller, self._dispatcher, self._runner, self._settler, GpuProbe(gpu.gpu_index, clock))
        self._probe = sources.probe
        self._reporter = Reporter(settings, sources, self._outbox, clock)
        self.health = Health(gpu, sources, self._claims, self._outbox, clock)
        metrics.watch(wiring.readings(sources, self._claims, self._reporter))
        metrics.watch_lanes(lambda lane: self._dispatcher.buffers.lanes[lane])
        report = Report(sources, metrics)
        jobs: list[Callable[[], object]] = [
            report.tell,
            lambda: loop.call_soon_threadsafe(self._dispatcher.cancels.forget_old),
        ]
        self.maintenance = Maintenance(jobs, gpu.maintenance_interval_s, gpu.maintenance_ratio, clock)
        self._state = "ready"

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain until `hurry` is; raises whatever broke.  The engine stays open."""
        await self._warm_up(stop)
        self.maintenance.start()
        self._outbox.start()
        self._control.following.start()
        self._poller.start()
        self._probe.start()
        if self._gpu.borrows:
            self._fleet.following.start()
        tasks = [asyncio.create_task(work) for work in self._work()]
        stopped, retired = asyncio.create_task(stop.wait()), asyncio.create_task(self._retire())
        try:
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
            await self._drain(hurry)
        finally:
            stopped.cancel()
            retired.cancel()
            await self._close(tasks)

    async def _warm_up(self, stop: asyncio.Event) -> None:
        """Before the group is joined: until then others serve the partitions."""
        if self._gpu.engine in {"simulated", "null"} or not self._gpu.warm_up_s:
            return
        self.health.is_warming = True
        both = [asyncio.create_task(work) for work in (warm_up(self._settings, self._engine), stop.wait())]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for result in await end(both):
            if isinstance(result, Exception):
                raise result
        self.health.is_warming = False

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        retry_s = self._gpu.redis_retry_s
        return [
            self._dispatcher.run(),
            self._settler.mark(retry_s, self._dispatcher.wake),
            self._settler.make_sure(retry_s),
            self._poster.run(),
            self._together.hold(retry_s),
            self._renew(),
            self._tick(),
            self._expire(),
            self._report(),
            self._watch_broker(),
            *([self._borrow()] if self._gpu.borrows else ()),
        ]

    async def _tick(self) -> None:
        """Wake the dispatcher for what becomes due by time alone."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._outbox.deliver()
            self._dispatcher.wake()
            self.health.note()
            self._reporter.look()
            self._dispatcher.takes_in = self._reporter.intake.is_open
            followers = self._control.following, self._fleet.following
            parts = self._poller, *followers, self._outbox, self._runner, self.maintenance
            failure = next((part.failure for part in parts if part.failure is not None), None)
            if failure is not None:
                raise failure

    async def _expire(self) -> None:
        """Wake it sooner for a deadline: the answer must be out within 0.1 s of it."""
        while True:
            await asyncio.sleep(self._gpu.expiry_interval_s)
            if self._dispatcher.buffers.has_expired(self._clock.wall_s()):
                self._dispatcher.wake()

    async def _borrow(self) -> None:
        """Serve the other length too while the pool needs it."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._borrower.look()

    async def _watch_broker(self) -> None:
        """Have an outage of Kafka known before /livez would take it for a stall."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self.health.is_suspicious():
                await asyncio.to_thread(self.health.look)

    async def _report(self) -> None:
        while True:
            self._reporter.send(self._state)
            await asyncio.sleep(self._gpu.telemetry_interval_s)

    async def _renew(self) -> None:
        """Keep the leases of all ids held, in one call; a lost one stops its attempt.

        The first call comes before any partition: who knows the memory of Redis notices when it is lost.
        """
        was_available = True
        while True:
            try:
                await self._claims.look()
                self._runner.abort_lost(await self._claims.renew(self._claims.held_ids()))
                if self._unclaimed is not None:
                    await self._unclaimed.pay()
            except ClaimsUnavailable as error:
                if was_available:
                    log.warning("redis_unavailable", error=str(error))
            if self._claims.available and not was_available:
                log.info("redis_back")
            was_available = self._claims.available
            await asyncio.sleep(self._gpu.renew_s)

    async def _retire(self) -> None:
        """When it is ordered, give the partitions away and let what runs end, however long; the process stays.

        Whoever ordered it sees by the telemetry when nothing runs any more, and ends the process then.
        """
        await self._told_to_drain.wait()
        self._state, self._dispatcher.is_draining = "draining", True
        self._poller.served = ()
        log.info("draining_by_order", running=self._runner.running)

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Start nothing new and let what runs end, within the grace."""
        self._state, self._dispatcher.is_draining = "draining", True
        self._reporter.send(self._state)
        log.info("draining", running=self._runner.running, settling=self._settler.open)

        def is_over() -> bool:
            return hurry.is_set() or not (self._runner.running or self._settler.open)

        await self._wait_until(is_over, self._gpu.grace_s)

    async def _close(self, tasks: list[asyncio.Task[None]]) -> None:
        """Abort the rest, commit, leave the group, flush.  Each step has its bound: what is away answers nothing."""
        self._dispatcher.is_draining = True
        aborting = asyncio.create_task(self._abort())
        await asyncio.wait({aborting}, timeout=STOP_S)
        self._dispatcher.drop_waiting()
        self._poller.leave()
        if not await self._wait_until(lambda: not self._poller.is_alive, LEAVE_S):
            log.warning("group_not_left")
        self._control.following.stop()
        self._fleet.following.stop()
        self._probe.stop()
        self.maintenance.stop()
        self._state = "gone"
        self._reporter.send(self._state)
        if not await self._wait_until(lambda: not self._poster.unsent, FLUSH_S):
            log.warning("not_flushed", records=self._poster.unsent)
        self._outbox.stop()
        await end([aborting, *tasks])
        await self._redis.aclose()
        log.info("stopped")

    async def _abort(self) -> None:
        aborted = {*await self._runner.stop(), *self._dispatcher.failures.stop()}
        log.info("aborted", running=len(aborted))
        try:
            await self._claims.release([entry.id for entry in aborted if not entry.takeovers])
            await self._claims.defer([entry.id for entry in aborted if entry.takeovers])
        except ClaimsUnavailable:
            log.warning("claims_kept", ids=len(aborted))

    async def _wait_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        until_s = self._clock.mono_s() + limit_s
        while not condition():
            if self._clock.mono_s() >= until_s:
                return False
            await asyncio.sleep(_DRAIN_POLL_S)
        return True
