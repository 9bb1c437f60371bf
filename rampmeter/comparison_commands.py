"""`rampmeter shadow-diff|reality-check`: options and wiring.  What they run is imported only when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from rampmeter import state
from rampmeter.options import CLOCK, Json, end
from rampmeter.output import Output
from rampmeter.settings import StackSettings
from streams.settings import StreamsSettings
from topics import clients, process
from topics.settings import load


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("shadow-diff")(shadow_diff_command)
    app.command("reality-check")(reality_check_command)


def shadow_diff_command(
    shadow: Annotated[str, typer.Argument(help="Name of the shadow, as in its streams.shadow.")],
    *,
    since: Annotated[str, typer.Option(help="How far back: 90, 90s, 10m, 2h.")] = "1h",
    as_json: Json = False,
) -> None:
    """Tell what a shadow decides otherwise, by tenant; status 1 when it has decided nothing."""
    from rampmeter import durations, shadow_diff  # noqa: PLC0415 - see the module's docstring

    settings = state.connect(StreamsSettings)
    since_s = CLOCK.wall_s() - durations.parse(since, "--since")
    clients.require_kafka(settings)
    found = shadow_diff.report(shadow_diff.read(settings, shadow, since_s))
    shadow_diff.show(found, Output(CLOCK, as_json=as_json))
    end(0 if found.compared + found.only_shadow + found.waiting else process.EXIT_FINDING)


def reality_check_command(
    trace: Annotated[Path | None, typer.Argument(help="CSV: arrival_s, input_tokens, output_tokens, service.")] = None,
    *,
    limit: Annotated[int, typer.Option(min=2, help="Rows to send, from the first.")] = 700,
    load_ratio: Annotated[float, typer.Option("--load", min=0.01, help="Relative to the engines' saturation.")] = 0.95,
    engines: Annotated[int, typer.Option(min=1, help="Simulated engines, in real time.")] = 2,
    offset: Annotated[float, typer.Option(min=0, max=1, help="Part of the trace's time at which it begins.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the generated load, when no trace is named.")] = 1,
    as_json: Json = False,
) -> None:
    """Hold the simulator against the real pipeline on the same requests; status 1 when they differ by over 25 %."""
    from rampmeter import reality_check, workload  # noqa: PLC0415 - see the module's docstring
    from rampmeter.simulation import scenario  # noqa: PLC0415 - the same

    output = Output(CLOCK, as_json=as_json)
    rows = (
        scenario.shifted(workload.read_trace(trace), offset)[:limit] if trace else workload.generate_count(limit, seed)
    )
    data_dir = load(StackSettings).stack.data_dir / "reality-check"
    found = reality_check.run(reality_check.Asked(rows, load_ratio, engines, data_dir), CLOCK, output)
    reality_check.show(found, output)
    end(process.EXIT_FINDING if found.over or found.lost else 0)
