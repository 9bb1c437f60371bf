"""`rampmeter doctor`: options and wiring.  What it runs is imported only when it runs."""

from typing import Annotated, Literal

import typer

from rampmeter import state
from rampmeter.options import CLOCK, Json, end
from rampmeter.output import Output
from streams.settings import StreamsSettings
from topics import clients, process

WINDOW_S = 300.0

Who = Annotated[
    Literal["streams", "gpu_consumers", "autoscaler", "rampmeter", "upstream"],
    typer.Option("--as", help="Whose rights this user must have."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor_command)


def doctor_command(
    *,
    who: Who = "rampmeter",
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Why are answers slow?  A line for each pattern.")
    ] = False,
    acls: Annotated[bool, typer.Option("--acls", help="Print the rights that each process needs; ask nobody.")] = False,
    as_json: Json = False,
) -> None:
    """Check settings, topics, rights, Redis, clocks and versions; status 1, 69 or 78 when something is wrong."""
    output = Output(CLOCK, as_json=as_json)
    if acls and diagnose:
        raise typer.BadParameter("name --acls or --diagnose, not both")
    if acls:
        _print_acls(output)
    elif diagnose:
        _diagnose(output)
    else:
        _examine(who, output)


def _examine(who: Who, output: Output) -> None:
    from rampmeter.doctor import examination, findings, ours, show  # noqa: PLC0415 - see the module's docstring

    found = list(ours.settings_of_all())
    if not findings.status(found):
        found += examination.examine(state.connect(StreamsSettings), who, CLOCK)
    if output.as_json:
        output.result({"findings": found, "status": findings.status(found)})
    output.text(show.findings(found))
    end(findings.status(found))


def _diagnose(output: Output) -> None:
    from rampmeter.doctor import diagnosis, looking, show  # noqa: PLC0415 - see the module's docstring

    settings = state.connect(StreamsSettings)
    clients.require_kafka(settings)
    pools = looking.pools(settings, CLOCK, WINDOW_S)
    found = [line for pool in pools for line in diagnosis.judge(pool, CLOCK.wall_s())]
    if output.as_json:
        output.result({"patterns": found})
    output.text(show.judgements(found))
    end(process.EXIT_FINDING if any(line.shows for line in found) else 0)


def _print_acls(output: Output) -> None:
    from rampmeter.doctor import examination, show  # noqa: PLC0415 - see the module's docstring
    from topics import acls  # noqa: PLC0415

    settings = state.connect(StreamsSettings)
    lines = acls.needed(settings, examination.reply_patterns(settings))
    if output.as_json:
        output.result({"acls": lines})
    output.text(show.access_list(lines))
