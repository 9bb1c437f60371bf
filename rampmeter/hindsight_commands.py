"""`rampmeter replay-decisions|what-if`: options and wiring.  What it runs is imported only when it runs."""

from typing import Annotated

import typer

from rampmeter import state
from rampmeter.options import CLOCK, Json, end
from rampmeter.output import Output
from topics import clients, process

Since = Annotated[str, typer.Option(help="How far back: 90, 90s, 10m, 2h.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting as `rampmeter config print` names it; several times."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("replay-decisions")(replay_decisions_command)
    app.command("what-if")(what_if_command)


def replay_decisions_command(*, since: Since = "6h", sets: Sets = None, as_json: Json = False) -> None:
    """Make every logged decision again from its inputs; status 1 when one comes out otherwise.

    With --set: which of them other settings had decided otherwise, all else as it was then.
    """
    from autoscaler.settings import AutoscalerSettings  # noqa: PLC0415 - see the module's docstring
    from rampmeter import durations  # noqa: PLC0415
    from rampmeter.hindsight import overrides, replay  # noqa: PLC0415
    from rampmeter.hindsight.redecide import Books  # noqa: PLC0415
    from streams.settings import StreamsSettings  # noqa: PLC0415

    since_s = CLOCK.wall_s() - durations.parse(since, "--since")
    then = Books(state.connect(StreamsSettings), state.connect(AutoscalerSettings))
    changes = overrides.parsed(sets or ())
    overrides.require_known(changes, [then.streams, then.autoscaler])
    now = Books(overrides.changed(then.streams, changes), overrides.changed(then.autoscaler, changes))
    clients.require_kafka(then.streams)
    found = replay.run(now, then, since_s)
    replay.show(found, Output(CLOCK, as_json=as_json))
    end(0 if found.is_clean() else process.EXIT_FINDING)


def what_if_command(
    *,
    since: Since = "6h",
    sets: Sets = None,
    pool: Annotated[str, typer.Option(help="Whose requests.")] = "default",
    replicas: Annotated[int | None, typer.Option(min=1, help="Consumers; default: as many as answered.")] = None,
    logged_replicas: Annotated[
        int | None, typer.Option(min=1, help="Consumers that there were; default: as many as answered.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate the logged requests as they were and with other settings or replicas, beside what happened."""
    from autoscaler.settings import AutoscalerSettings  # noqa: PLC0415 - see the module's docstring
    from gpu_consumers.settings import GpuSettings  # noqa: PLC0415
    from rampmeter import durations  # noqa: PLC0415
    from rampmeter.hindsight import load, overrides, replay, what_if  # noqa: PLC0415
    from rampmeter.hindsight.redecide import Books  # noqa: PLC0415
    from streams.settings import StreamsSettings  # noqa: PLC0415

    since_s = CLOCK.wall_s() - durations.parse(since, "--since")
    streams, gpu, scaler = state.connect(StreamsSettings), state.connect(GpuSettings), state.connect(AutoscalerSettings)
    changes = overrides.parsed(sets or ())
    overrides.require_known(changes, [streams, gpu, scaler])
    books = Books(streams, scaler)
    clients.require_kafka(streams)
    found = load.read(books, pool, since_s, (decision for _, decision in replay.decisions(books, since_s)))
    what_if.require_simulated([name for name, _ in changes], is_scaled=found.is_scaled)
    logged = what_if.case(found, (streams, gpu, scaler), pool, logged_replicas)
    others = (
        overrides.changed(streams, changes),
        overrides.changed(gpu, changes),
        overrides.changed(scaler, changes),
    )
    changed = what_if.case(found, others, pool, replicas or logged_replicas)
    what_if.show(what_if.run(found, logged, changed, dict(changes)), Output(CLOCK, as_json=as_json))
