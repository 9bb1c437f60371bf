"""`rampmeter top`: options and wiring.  What it runs is imported only when it runs."""

import sys
from threading import Event
from typing import Annotated

import typer

from rampmeter import state
from rampmeter.options import CLOCK, Json, end
from rampmeter.output import Output
from topics import clients, process
from topics.errors import ConfigError
from topics.settings import Settings, redacted

APART_S = 2.0
"""Between the two readings that rates follow from."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("top")(top_command)


def top_command(
    *,
    every_s: Annotated[float, typer.Option("--every", min=0.2, help="Seconds between two readings.")] = 2.0,
    tenants: Annotated[int, typer.Option(min=1, max=1000, help="Name at most so many, the others together.")] = 20,
    as_json: Json = False,
) -> None:
    """Watch classes, pools, tenants and consumers; `--json` prints them once, status 69 when some cannot be read."""
    if not as_json and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("this is no terminal; `rampmeter top --json` prints one reading and ends")
    settings = state.connect(Settings)
    if as_json:
        _print(settings, tenants)
    else:
        _watch(settings, tenants, every_s)


def _print(settings: Settings, tenants: int) -> None:
    from rampmeter.top.reader import Reader  # noqa: PLC0415 - see the module's docstring

    clients.require_kafka(settings)
    with Reader(settings, CLOCK, tenants) as reader:
        reader.read()
        Event().wait(APART_S)
        found = reader.read()
    Output(CLOCK, as_json=True).result(found)
    end(process.EXIT_UNAVAILABLE if found.unread else 0)


def _watch(settings: Settings, tenants: int, every_s: float) -> None:
    try:
        from rampmeter.top.app import Top  # noqa: PLC0415 - see the module's docstring
    except ModuleNotFoundError as error:
        problem = f"rampmeter top needs the package {error.name}: pip install 'rampmeter[tui]' (--json does without)"
        raise ConfigError([problem]) from error
    from rampmeter.top.reader import Reader  # noqa: PLC0415

    def follow(top: Top) -> None:
        with Reader(settings, CLOCK, tenants) as reader:
            while not top.over.is_set():
                top.tell(reader.read())
                top.over.wait(every_s)

    fault = Top(follow, CLOCK, redacted(settings)["kafka"]["bootstrap.servers"]).run()
    if fault is not None:
        raise fault
