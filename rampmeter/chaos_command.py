"""`rampmeter chaos`: options and wiring.  What it runs is imported only when it runs."""

from typing import Annotated

import typer

from rampmeter.options import CLOCK, Json
from rampmeter.output import Output


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("chaos")(chaos_command)


def chaos_command(
    name: Annotated[str | None, typer.Argument(help="Of the incident; see --list.")] = None,
    *,
    as_list: Annotated[bool, typer.Option("--list", help="Show every incident and its alert.")] = False,
    lasts_s: Annotated[
        float | None, typer.Option("--for", min=1, help="Seconds; by default until its alert has fired.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make one alert true on the local stack of `rampmeter up`, and put back what that changed, also on Ctrl-C."""
    from rampmeter.chaos import running, site  # noqa: PLC0415 - see the module's docstring
    from rampmeter.chaos.incidents import INCIDENTS  # noqa: PLC0415

    output = Output(CLOCK, as_json=as_json)
    if as_list:
        _list(output)
    elif name not in INCIDENTS:
        raise typer.BadParameter(f"name one of {', '.join(INCIDENTS)}, or --list")
    else:
        ran = running.run(name, site.find(), lasts_s, CLOCK, output)
        if output.as_json:
            output.result(ran)


def _list(output: Output) -> None:
    from rampmeter.chaos.incidents import INCIDENTS  # noqa: PLC0415 - see the module's docstring

    if output.as_json:
        incidents = [
            {"name": name, "alert": one.alert, "what": one.what, "lasts_s": one.lasts_s, "way_out": one.way_out}
            for name, one in INCIDENTS.items()
        ]
        output.result({"incidents": incidents})
        return
    rows = [(name, one.alert, f"{one.lasts_s:g}", one.what) for name, one in INCIDENTS.items()]
    output.table("Incidents", ("name", "alert", "seconds", "what happens"), rows)
