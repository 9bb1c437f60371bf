"""`rampmeter config`: options and wiring.  What they run is imported only when it runs."""

import json
from typing import Annotated

import typer

from rampmeter.options import CLOCK, Json, end
from rampmeter.output import Output
from topics.records import Role

config_app = typer.Typer(
    help="Check the settings of all processes, print them, their schema, or what a deployment follows from.",
    no_args_is_help=True,
)


@config_app.command("check")
def config_check(*, as_json: Json = False) -> None:
    """Check the settings of all processes and name every problem; status 78 when there is one."""
    from rampmeter import checks  # noqa: PLC0415 - see the module's docstring

    end(checks.check_config(Output(CLOCK, as_json=as_json)))


@config_app.command("print")
def config_print(*, as_json: Json = False) -> None:
    """Print the settings of all processes, secrets hidden."""
    from rampmeter import checks  # noqa: PLC0415 - see the module's docstring

    checks.print_config(Output(CLOCK, as_json=as_json))


@config_app.command("schema")
def config_schema_command(*, as_json: Json = False) -> None:
    """Print the JSON Schema of a settings file, for editors and checks; --json: on one line."""
    from rampmeter import checks, config_schema  # noqa: PLC0415 - see the module's docstring

    found = config_schema.schema(checks.KINDS)
    if as_json:
        Output(CLOCK, as_json=True).result(found)
    else:
        typer.echo(json.dumps(found, indent=2))


@config_app.command("deployment")
def config_deployment(
    *,
    image: Annotated[str, typer.Option(help="The consumers' image.")],
    roles: Annotated[list[Role] | None, typer.Option("--role", help="A role of the consumers; several: each.")] = None,
    gpu_label: Annotated[str, typer.Option(help="The nodes' label that names their GPU.")] = "nvidia.com/gpu.product",
    gpu_resource: Annotated[
        str, typer.Option(help="What a consumer gets one of, such as a MIG slice; empty: no GPU.")
    ] = "nvidia.com/gpu",
) -> None:
    """Print the Kubernetes Deployments of all pools' GPU consumers, as JSON for `kubectl apply -f -`."""
    from gpu_consumers.settings import GpuSettings  # noqa: PLC0415 - see the module's docstring
    from rampmeter import deployment  # noqa: PLC0415
    from topics.settings import load  # noqa: PLC0415

    machine = deployment.Machine(gpu_label, gpu_resource or None)
    found = deployment.consumers(load(GpuSettings), image, roles or [Role.GENERAL], machine)
    typer.echo(json.dumps(found, indent=2))
