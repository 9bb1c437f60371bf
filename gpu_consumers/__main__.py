"""`python -m gpu_consumers`: one consumer in front of one engine, until SIGTERM; a second one cuts the drain short."""

from topics import early  # noqa: F401 - before all else

# isort: split

import asyncio
import signal
import sys

import structlog
from prometheus_client import REGISTRY

from gpu_consumers import wiring
from gpu_consumers.consumer import GpuConsumer
from gpu_consumers.engines import factory
from gpu_consumers.settings import GpuSettings
from topics import admin, clients, process, tracing
from topics.clock import SystemClock
from topics.settings import load
from topics.status import StatusServer

log = structlog.get_logger()


def main() -> int:
    """Check the surroundings, then serve; 0 after a drained end."""
    settings = load(GpuSettings)
    process.configure_logs(settings, "gpu_consumers")
    clients.require_kafka(settings)
    if settings.gpu.without_redis == "wait":
        clients.require_redis(settings)
    admin.require(settings)
    with tracing.telling(settings, "rampmeter-gpu", settings.gpu.consumer_id):
        asyncio.run(_serve(settings))
    return 0


async def _serve(settings: GpuSettings) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    clock = SystemClock()
    engine = await factory.start(wiring.engine_options(settings.gpu), clock)
    try:
        await _consume(GpuConsumer(settings, engine, clock, REGISTRY), settings, stop, hurry)
        process.end_within(settings.gpu.close_s)
    finally:
        await engine.close()


async def _consume(consumer: GpuConsumer, settings: GpuSettings, stop: asyncio.Event, hurry: asyncio.Event) -> None:
    status = StatusServer(
        settings.status_host, settings.status_port, live=consumer.health.live, ready=consumer.health.ready
    )
    status.start()
    log.info("started", consumer=settings.gpu.consumer_id, engine=settings.gpu.engine, status=status.url)
    process.keep_start_up()
    try:
        await consumer.run(stop, hurry)
    finally:
        status.stop()


if __name__ == "__main__":
    sys.exit(process.exit_status(main))
