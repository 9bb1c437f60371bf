"""`rampmeter console`: reads and serves until SIGTERM."""

import asyncio
import contextlib

import structlog

from rampmeter import http_server
from rampmeter.console import sources
from rampmeter.console.app import App, as_refusal
from rampmeter.console.board import Board
from rampmeter.console.permission import Permission
from rampmeter.console.settings import ConsoleSettings
from topics import process
from topics.clock import Clock
from topics.status import StatusServer

log = structlog.get_logger()
_END_S = 5.0
"""How long open pages may take to end.  Their streams end at once."""


def run(settings: ConsoleSettings, clock: Clock) -> int:
    """Serve; returns 0 after a clean end.  A broker that is away is shown, not an end."""
    process.configure_logs(settings, "console")
    asyncio.run(_serve(settings, Permission.of(settings.console), clock))
    return 0


async def _serve(settings: ConsoleSettings, permission: Permission, clock: Clock) -> None:
    own, stop = settings.console, http_server.stop_on_signals()
    watches = sources.make(settings, clock)
    board = Board(settings, watches, clock)
    app = App(settings, permission, board, clock).made()
    runner = http_server.runner(app, as_refusal, _END_S)
    status = StatusServer(settings.status_host, settings.status_port, live=board.complaint, ready=board.complaint)
    await runner.setup()
    where = await http_server.listen(runner, own.host, own.port, ("console", "port"))
    for watch in watches.all():
        watch.start()
    publishing = asyncio.create_task(board.run())
    status.start()
    log.info("started", console=f"http://{where}/", may_order=permission.is_possible, status=status.url)
    try:
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait([waiting, publishing], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        log.info("stopping")
    finally:
        for watch in watches.all():
            watch.ask_to_stop()
        await runner.cleanup()
        status.stop()
        await asyncio.gather(*(asyncio.to_thread(watch.join) for watch in watches.all()))
    publishing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await publishing
