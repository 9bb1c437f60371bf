"""`rampmeter serve`: options and wiring.  What it runs is imported only when it runs."""

from typing import Annotated

import typer

from rampmeter import state
from rampmeter.options import CLOCK, end


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve_command)


def serve_command(
    *,
    host: Annotated[str | None, typer.Option(help="Where to listen; only this machine by default.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0 takes a free one.")] = None,
) -> None:
    """Serve OpenAI's chat completions over HTTP in front of the topics, until Ctrl-C or SIGTERM."""
    from rampmeter.door import serve  # noqa: PLC0415 - see the module's docstring
    from rampmeter.door.settings import DoorSettings  # noqa: PLC0415

    settings = state.connect(DoorSettings)
    chosen = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    end(serve.run(settings.model_copy(update={"door": settings.door.model_copy(update=chosen)}), CLOCK))
