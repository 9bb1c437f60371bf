"""`rampmeter cancel|pause|resume|drain|limits`: options and wiring.  What they run is imported only when it runs."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from rampmeter import state
from rampmeter.options import CLOCK, Json, end
from rampmeter.output import Output
from streams.settings import StreamsSettings
from topics import clients, process
from topics.orders import ALL
from topics.outcomes import Outcome
from topics.records import Control, ControlAction, ControlKind
from topics.settings import Settings

if TYPE_CHECKING:
    from rampmeter.control import Change

limits_app = typer.Typer(help="Show the budgets that hold, or change them while everything runs.", no_args_is_help=True)

Pausable = Annotated[Literal["tenant", "pool", "class"], typer.Argument(help="What its name is of.")]
Limited = Annotated[Literal["tenant", "pool", "class", "global"], typer.Argument(help="What its name is of.")]
Name = Annotated[str, typer.Argument(help="Its name.")]
BudgetName = Annotated[str | None, typer.Argument(help="Its name; none for global.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("cancel")(cancel_command)
    app.command("pause")(pause_command)
    app.command("resume")(resume_command)
    app.command("drain")(drain_command)
    app.add_typer(limits_app, name="limits")


def cancel_command(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="Of the request; it need not have arrived yet.")],
    *,
    tenant: Annotated[str | None, typer.Option(help="Cancel it only if it is this tenant's.")] = None,
    wait_s: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for how it ended.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Cancel a request, whether it waits or runs; with --wait, status 1 when it ended otherwise or not in time."""
    from rampmeter import control  # noqa: PLC0415 - see the module's docstring

    order = _send(ControlAction.CANCEL, (ControlKind.REQUEST, request_id), control.Change(tenant=tenant))
    output = Output(CLOCK, as_json=as_json)
    if not wait_s:
        _say(order, output)
        return
    reply = control.wait_end(state.connect(StreamsSettings), CLOCK, request_id, wait_s)
    outcome = None if reply is None else reply.outcome
    if as_json:
        output.result({**msgspec.to_builtins(order), "outcome": outcome})
    output.text(order.id)
    output.say(f"no answer within {wait_s:g} s; it may still come" if outcome is None else f"it ended as {outcome}")
    end(0 if outcome is Outcome.CANCELLED else process.EXIT_FINDING)


def pause_command(what: Pausable, name: Name, *, as_json: Json = False) -> None:
    """Let no more work of a tenant, pool or class onto the lanes; it waits, at most as long as its class may."""
    from rampmeter.control import Change  # noqa: PLC0415 - see the module's docstring

    _order(ControlAction.PAUSE, (ControlKind(what), name), Change(), as_json=as_json)


def resume_command(what: Pausable, name: Name, *, as_json: Json = False) -> None:
    """End a pause."""
    from rampmeter.control import Change  # noqa: PLC0415 - see the module's docstring

    _order(ControlAction.RESUME, (ControlKind(what), name), Change(), as_json=as_json)


def drain_command(
    name: Annotated[str, typer.Argument(metavar="POOL|CONSUMER", help="All consumers of a pool, or one by its id.")],
    *,
    wait_s: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait until they run nothing more.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Have consumers give their lanes away and end what they run; with --wait, status 1 when they still run then.

    Their processes stay until they are ended, and do not come back to work.
    """
    from rampmeter import control, draining  # noqa: PLC0415 - see the module's docstring

    settings = state.connect(Settings)
    clients.require_kafka(settings)
    names = draining.targets(settings, name, draining.reports(settings), CLOCK.wall_s())
    orders = [_send(ControlAction.DRAIN, (ControlKind.CONSUMER, one), control.Change()) for one in names]
    left = draining.wait(settings, CLOCK, names, wait_s) if wait_s else None
    output = Output(CLOCK, as_json=as_json)
    if as_json:
        output.result({"orders": orders, "running": left})
    for order in orders:
        output.text(f"{order.id} {order.name}")
    if left:
        told = ", ".join(f"{one} runs {count}" for one, count in left.items())
        output.say(f"not drained within {wait_s:g} s: {told}; they go on, ask again with --wait")
    else:
        output.say("drained: their processes may end" if wait_s else "ordered; --wait S tells when they are done")
    end(process.EXIT_FINDING if left else 0)


@limits_app.command("show")
def limits_show(*, as_json: Json = False) -> None:
    """Every budget as it holds now, and who changed it."""
    from rampmeter import control  # noqa: PLC0415 - see the module's docstring

    settings = state.connect(StreamsSettings)
    clients.require_kafka(settings)
    now_s = CLOCK.wall_s()
    rows = control.limits(settings, control.read_state(settings, now_s))
    control.show_limits(rows, now_s, Output(CLOCK, as_json=as_json))


@limits_app.command("set")
def limits_set(
    what: Limited,
    name: BudgetName = None,
    *,
    refill_units_per_s: Annotated[float | None, typer.Option(help="Cost units that flow in a second.")] = None,
    burst_s: Annotated[float | None, typer.Option(help="Seconds of them that may be saved up.")] = None,
    as_json: Json = False,
) -> None:
    """Change a budget until it is reset; what is not named is as in the settings."""
    from rampmeter.control import Change  # noqa: PLC0415 - see the module's docstring

    if refill_units_per_s is None and burst_s is None:
        raise typer.BadParameter("name --refill-units-per-s, --burst-s or both")
    change = Change(refill_units_per_s=refill_units_per_s, burst_s=burst_s)
    _order(ControlAction.LIMITS, _budget(what, name), change, as_json=as_json)


@limits_app.command("reset")
def limits_reset(what: Limited, name: BudgetName = None, *, as_json: Json = False) -> None:
    """Give a budget back to the settings."""
    from rampmeter.control import Change  # noqa: PLC0415 - see the module's docstring

    _order(ControlAction.LIMITS, _budget(what, name), Change(), as_json=as_json)


def _budget(what: str, name: str | None) -> tuple[ControlKind, str]:
    kind = ControlKind(what)
    if kind is ControlKind.GLOBAL:
        return kind, ALL if name is None else name
    if name is None:
        raise typer.BadParameter(f"name the {what}")
    return kind, name


def _order(action: ControlAction, target: tuple[ControlKind, str], change: "Change", *, as_json: bool) -> None:
    _say(_send(action, target, change), Output(CLOCK, as_json=as_json))


def _send(action: ControlAction, target: tuple[ControlKind, str], change: "Change") -> Control:
    """Make the order and send it; what no worker would follow is wrong use."""
    from rampmeter import control  # noqa: PLC0415 - see the module's docstring

    settings = state.connect(Settings)
    try:
        order = control.make_order(settings, CLOCK, action, target, change)
    except control.OrderRefused as error:
        raise typer.BadParameter(str(error)) from error
    clients.require_kafka(settings)
    control.send_order(settings, order)
    return order


def _say(order: Control, output: Output) -> None:
    if output.as_json:
        output.result(order)
    else:
        output.text(order.id)
        output.say(f"ordered: {order.action} {order.kind} {order.name}; the workers follow within a second")
