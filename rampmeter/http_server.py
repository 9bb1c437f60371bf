"""What the HTTP servers of the command share: they listen, or say why they cannot, and end on a signal."""

import asyncio
import signal

from aiohttp import web

from topics.errors import DependencyDown
from topics.settings import variable_name


async def listen(runner: web.AppRunner, host: str, port: int, setting: tuple[str, ...]) -> str:
    """Where it listens, as `host:port`; raises DependencyDown.  `setting` names the port in its advice."""
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        fix = f"End the process that holds it, or set {variable_name(setting)} (0 takes a free one)."
        raise DependencyDown(f"cannot listen: {error.strerror}", f"{host}:{port}", fix) from error
    bound_host, bound_port = runner.addresses[0][:2]
    return f"{bound_host}:{bound_port}"


def stop_on_signals() -> asyncio.Event:
    """Set when the process is asked to end."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
