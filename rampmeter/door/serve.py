"""`rampmeter serve`: the door until SIGTERM, then what is open ends."""

import asyncio

import structlog

from rampmeter import http_server
from rampmeter.async_client import AsyncClient, Reading
from rampmeter.door.app import Door, as_refusal
from rampmeter.door.book import MARK, Book
from rampmeter.door.keys import Keys
from rampmeter.door.settings import DoorSettings
from rampmeter.signing import Signer
from topics import clients, process, tracing
from topics.clock import Clock
from topics.status import StatusServer

log = structlog.get_logger()
_SILENT_S = 10.0
"""Of the reader of replies.  Too small: a slow moment looks like a standstill.  Too large: one is noticed late."""
_KAFKA_TIMEOUT_S = 1.0


def run(settings: DoorSettings, clock: Clock) -> int:
    """Serve; returns 0 after a clean end."""
    process.configure_logs(settings, "door")
    keys = Keys.of(settings.door)
    clients.require_kafka(settings)
    with tracing.telling(settings, "rampmeter-door"):
        asyncio.run(_serve(settings, keys, clock))
    return 0


async def _serve(settings: DoorSettings, keys: Keys, clock: Clock) -> None:
    own, stop = settings.door, http_server.stop_on_signals()
    book = Book(settings, own.remembered_answers)
    reading = Reading(own.reply_topic, clock.wall_s() - settings.dedupe_window_s, book.note, MARK)
    try:
        async with AsyncClient(settings, clock, reading, Signer.of(settings.signing)) as client:
            door = Door(settings, keys, client, book, clock)
            status = _status(settings, client, door)
            runner = http_server.runner(door.app(), as_refusal, own.drain_s)
            await runner.setup()
            where = await http_server.listen(runner, own.host, own.port, ("door", "port"))
            status.start()
            log.info("started", door=f"http://{where}/v1", status=status.url)
            await stop.wait()
            log.info("stopping", open_within_s=own.drain_s)
            door.is_draining = True
            await runner.cleanup()
            status.stop()
    finally:
        book.close()


def _status(settings: DoorSettings, client: AsyncClient, door: Door) -> StatusServer:
    def live() -> str | None:
        return client.complaint(_SILENT_S)

    def ready() -> str | None:
        if door.is_draining:
            return "draining"
        return live() or (None if client.is_broker_there(_KAFKA_TIMEOUT_S) else "Kafka does not answer")

    return StatusServer(settings.status_host, settings.status_port, live=live, ready=ready)
