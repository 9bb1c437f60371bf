"""`rampmeter console`: options and wiring.  What it runs is imported only when it runs."""

from typing import Annotated

import typer

from rampmeter import state
from rampmeter.options import CLOCK, end


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("console")(console_command)


def console_command(
    *,
    host: Annotated[str | None, typer.Option(help="Where to listen; only this machine by default.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0 takes a free one.")] = None,
) -> None:
    """Serve the web console: what waits, who serves and why, and a search by request id; until Ctrl-C or SIGTERM."""
    from rampmeter.console import serve  # noqa: PLC0415 - see the module's docstring
    from rampmeter.console.settings import ConsoleSettings  # noqa: PLC0415

    settings = state.connect(ConsoleSettings)
    chosen = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    end(serve.run(settings.model_copy(update={"console": settings.console.model_copy(update=chosen)}), CLOCK))
