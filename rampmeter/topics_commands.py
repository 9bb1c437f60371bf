"""`rampmeter topics`: options and wiring.  What it runs is imported only when it runs."""

import json
from typing import Annotated

import typer

from rampmeter import state
from rampmeter.options import CLOCK, Json, end
from rampmeter.output import Output
from streams.settings import StreamsSettings
from topics.settings import Settings, load

topics_app = typer.Typer(
    help="Say what would be created, create the topics, check them, or print them for Strimzi.", no_args_is_help=True
)


@topics_app.command("plan")
def topics_plan(*, as_json: Json = False) -> None:
    """Say what `apply` would do and what only you can do; changes nothing, status 1 when there is something to do."""
    from rampmeter import checks  # noqa: PLC0415 - see the module's docstring

    end(checks.plan_topics(state.connect(Settings), Output(CLOCK, as_json=as_json)))


@topics_app.command("apply")
def topics_apply(
    *,
    configs: Annotated[
        bool, typer.Option("--configs", help="Also set the properties of topics that exist as the settings want them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create the topics that are missing; change none, but for their properties with --configs."""
    from rampmeter import checks  # noqa: PLC0415 - see the module's docstring

    checks.apply_topics(state.connect(Settings), Output(CLOCK, as_json=as_json), configs=configs)


@topics_app.command("check")
def topics_check(*, as_json: Json = False) -> None:
    """Compare the broker's topics and their properties with the settings; status 78 when they differ."""
    from rampmeter import checks  # noqa: PLC0415 - see the module's docstring

    end(checks.check_topics(state.connect(Settings), Output(CLOCK, as_json=as_json)))


@topics_app.command("export")
def topics_export(
    *, cluster: Annotated[str, typer.Option(help="Name of the Kafka resource that they belong to.")] = "kafka"
) -> None:
    """Print the topics, and a user with its ACLs for each process, as Strimzi resources for `kubectl apply -f -`."""
    from rampmeter.doctor.examination import reply_patterns  # noqa: PLC0415 - see the module's docstring
    from rampmeter.manifests import strimzi  # noqa: PLC0415

    settings = load(StreamsSettings)
    typer.echo(json.dumps(strimzi.resources(settings, cluster, reply_patterns(settings)), indent=2))
