"""What the HTTP servers of the command share: they listen, or say why they cannot, and end on a signal."""

import asyncio
import errno
import logging
import signal

import structlog
from aiohttp import web

from rampmeter import http_protocol
from rampmeter.http_protocol import AsRefusal
from topics.errors import DependencyDown
from topics.settings import variable_name

log = structlog.get_logger()


class _Faults(logging.Logger):
    """Tells only the kind of a fault: aiohttp's words repeat what it could not read, a part of a prompt or a key."""

    def handle(self, record: logging.LogRecord) -> None:
        """In place of the record."""
        fault = record.exc_info[1] if record.exc_info else None
        log.warning("http_fault", error=type(fault).__name__)


def runner(app: web.Application, as_refusal: AsRefusal, end_s: float) -> web.AppRunner:
    """What serves the app, and at its end leaves `end_s` to what is open.

    Nothing of what is sent to it is logged, or repeated where it cannot be read; that is answered by `as_refusal`.
    """
    options = {"handler_cancellation": True, "access_log": None, "logger": _Faults("rampmeter.http", logging.INFO)}
    return http_protocol.Runner(app, as_refusal, shutdown_timeout=end_s, **options)


async def listen(runner: web.AppRunner, host: str, port: int, setting: tuple[str, ...]) -> str:
    """Where it listens, as `host:port`; raises DependencyDown.  `setting` names the port in its advice."""
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        fix = f"End the process that holds it, or set {variable_name(setting)} (0 takes a free one)."
        if error.errno != errno.EADDRINUSE:
            fix = f"Set {variable_name((*setting[:-1], 'host'))} to an address of this machine, and a port it may take."
        raise DependencyDown(f"cannot listen: {error.strerror}", f"{host}:{port}", fix) from error
    bound_host, bound_port = runner.addresses[0][:2]
    return f"{bound_host}:{bound_port}"


def stop_on_signals() -> asyncio.Event:
    """Set when the process is asked to end."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
