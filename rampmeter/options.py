"""What the commands share: the clock, common options, the end."""

from typing import Annotated, NoReturn

import typer

from topics.clock import SystemClock

CLOCK = SystemClock()

Json = Annotated[bool, typer.Option("--json", help="One line of JSON on stdout.")]


def end(status: int) -> NoReturn:
    """End the command with this status."""
    raise typer.Exit(status)
