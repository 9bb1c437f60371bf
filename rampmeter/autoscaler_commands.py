"""`rampmeter autoscaler`: options and wiring.  What it runs is imported only when it runs."""

from typing import Annotated

import typer

from rampmeter import state
from rampmeter.options import CLOCK, Json
from rampmeter.output import Output
from topics import clients
from topics.settings import Settings

autoscaler_app = typer.Typer(help="Look at how the fleet is sized.", no_args_is_help=True)


@autoscaler_app.callback()
def group() -> None:
    """Look at how the fleet is sized."""


@autoscaler_app.command("explain")
def explain_command(
    *,
    pool: Annotated[str | None, typer.Option(help="Only of this pool.")] = None,
    last: Annotated[int, typer.Option(min=1, help="At most the newest this many.")] = 20,
    since: Annotated[str, typer.Option(help="How far back: 90, 90s, 10m, 2h.")] = "6h",
    as_json: Json = False,
) -> None:
    """Show the autoscaler's last decisions, what each was made from and why; the newest last."""
    from rampmeter import durations, scale_log  # noqa: PLC0415 - see the module's docstring

    since_s = CLOCK.wall_s() - durations.parse(since, "--since")
    settings = state.connect(Settings)
    if pool is not None and pool not in settings.pools:
        raise typer.BadParameter(f"--pool {pool!r} is not one of {', '.join(sorted(settings.pools))}")
    clients.require_kafka(settings)
    decisions = scale_log.read(settings, settings.pools if pool is None else [pool], since_s, last)
    scale_log.show(decisions, CLOCK, Output(CLOCK, as_json=as_json))
