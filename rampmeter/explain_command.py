"""`rampmeter explain`: options and wiring.  What it runs is imported only when it runs."""

from typing import Annotated

import typer

from rampmeter import state
from rampmeter.options import CLOCK, Json
from rampmeter.output import Output
from streams.settings import StreamsSettings
from topics import clients


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(explain_command)


def explain_command(
    request_id: Annotated[
        str, typer.Argument(metavar="ID", help="Of the request; without one, topic-partition-offset.")
    ],
    *,
    since: Annotated[str, typer.Option(help="How far back: 90, 90s, 10m, 2h.")] = "6h",
    as_json: Json = False,
) -> None:
    """Tell what became of a request, step by step, from the topics alone; status 1 when they do not know it."""
    from rampmeter import durations, explain  # noqa: PLC0415 - see the module's docstring
    from rampmeter.explain import gathering, show  # noqa: PLC0415

    settings = state.connect(StreamsSettings)
    since_s = CLOCK.wall_s() - durations.parse(since, "--since")
    clients.require_kafka(settings)
    found = gathering.gather(settings, since_s, request_id).timeline(request_id)
    if found is None:
        raise explain.Unknown(request_id, since)
    output = Output(CLOCK, as_json=as_json)
    if as_json:
        output.result(found)
    output.text(show.text(found))
