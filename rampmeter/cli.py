"""The `rampmeter` command: options, exit statuses and wiring.  What it runs is imported only when it runs."""

import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer

from rampmeter import (
    autoscaler_commands,
    chaos_command,
    comparison_commands,
    config_commands,
    console_command,
    control_commands,
    dlq_commands,
    doctor_command,
    explain_command,
    hindsight_commands,
    serve_command,
    state,
    top_command,
    topics_commands,
)
from rampmeter.options import CLOCK, Json, end
from rampmeter.output import Output
from rampmeter.settings import StackSettings
from streams.settings import StreamsSettings
from topics import clients, process
from topics.errors import ConfigError, DependencyDown, LagUnavailable, PipelineError
from topics.records import Length, Priority
from topics.settings import Settings, load

Policy = Literal[
    "ours", "ours-unshed", "fifo", "fifo-shed", "strict", "static-split", "engine-priority", "sjf-oracle", "limit"
]

app = typer.Typer(
    help="Traffic control on Kafka for GPUs that serve large language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(topics_commands.topics_app, name="topics")
app.add_typer(config_commands.config_app, name="config")

INTERRUPTED = 130

Seconds = Annotated[float, typer.Option(min=5, help="Seconds of load.")]


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - called by typer
    if wanted:
        typer.echo(metadata.version("rampmeter"))
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Traffic control on Kafka for GPUs that serve large language models."""


@app.command("up")
def up_command(
    engines: Annotated[int | None, typer.Option(min=0, help="GPU consumers; 0 lets the autoscaler decide.")] = None,
    llama: Annotated[bool | None, typer.Option(help="Serve a small real model on the CPU too.")] = None,
) -> None:
    """Run the whole local stack until Ctrl-C."""
    from rampmeter import up  # noqa: PLC0415 - see the module's docstring

    settings = load(StackSettings)
    chosen = settings.stack.model_copy(
        update={name: value for name, value in (("engines", engines), ("llama", llama)) if value is not None}
    )
    up.run(settings.model_copy(update={"stack": chosen}), CLOCK, Output(CLOCK))


@app.command("submit")
def submit_command(  # noqa: PLR0913 - each is an option of the command
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from stdin.")],
    *,
    model: Annotated[str | None, typer.Option(help="Default: the settings' default model.")] = None,
    tenant: Annotated[str, typer.Option(help="Who pays.")] = "default",
    priority: Annotated[Priority, typer.Option(help="A claim; admission verifies it.")] = Priority.MEDIUM,
    length: Annotated[Length, typer.Option("--length-claim", help="A claim; admission corrects it.")] = Length.SHORT,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="How long to wait for the answer.")] = 120.0,
    stream: Annotated[bool, typer.Option("--stream", help="Show the text as it is made.")] = False,
    request_id: Annotated[str | None, typer.Option("--id", help="The same id is answered once.")] = None,
    reply_topic: Annotated[str | None, typer.Option(help="Where the answer goes, without the prefix.")] = None,
    as_json: Json = False,
) -> None:
    """Send one request and wait for its answer."""
    from rampmeter import client, submit  # noqa: PLC0415 - see the module's docstring

    text = sys.stdin.read() if prompt == "-" else prompt
    messages = [{"role": "user", "content": text}]
    ask = client.Ask(messages, model, tenant, priority, length, max_tokens, stream, request_id or client.new_id())
    output = Output(CLOCK, as_json=as_json)
    end(submit.run(state.connect(Settings), ask, submit.Route(reply_topic, timeout_s), CLOCK, output))


@app.command("demo")
def demo_command(
    *,
    seconds: Seconds = 30.0,
    seed: Annotated[int, typer.Option(help="Another seed is another load.")] = 1,
    model: Annotated[bool, typer.Option(help="End with a real model's answer (not with --json).")] = True,
    as_json: Json = False,
) -> None:
    """Start everything, send a load with a burst, show what happened."""
    from rampmeter import demo  # noqa: PLC0415 - see the module's docstring

    output = Output(CLOCK, as_json=as_json)
    data_dir = load(StackSettings).stack.data_dir / "demo"
    found = demo.run(demo.Demo(seconds, data_dir, seed, model), CLOCK, output)
    if as_json:
        output.result(found)
    end(0 if found.is_clean() else process.EXIT_FINDING)


@app.command("replay")
def replay_command(  # noqa: PLR0913 - each is an option of the command
    trace: Annotated[Path | None, typer.Argument(help="CSV: arrival_s, input_tokens, output_tokens, service.")] = None,
    *,
    limit: Annotated[int, typer.Option(min=2, help="Rows to send, from the first.")] = 3000,
    load_ratio: Annotated[float, typer.Option("--load", min=0.01, help="Relative to the engines' saturation.")] = 0.95,
    engines: Annotated[int, typer.Option(min=1, help="Simulated engines.")] = 2,
    speed: Annotated[float, typer.Option(min=0.1, help="Simulated seconds per second.")] = 10.0,
    policy: Annotated[Literal["ours", "fifo"], typer.Option(help="fifo: one lane, in order of arrival.")] = "ours",
    chaos: Annotated[bool, typer.Option("--chaos", help="Kill a consumer and a streams worker in mid-run.")] = False,
    seed: Annotated[int, typer.Option(help="Of the generated load, when no trace is named.")] = 1,
    as_json: Json = False,
) -> None:
    """Replay a trace (or a generated load like it) on a stack of its own; figures in simulated seconds."""
    from rampmeter import replay, workload  # noqa: PLC0415 - see the module's docstring

    output = Output(CLOCK, as_json=as_json)
    rows = workload.read_trace(trace, limit) if trace else workload.generate_count(limit, seed)
    data_dir = load(StackSettings).stack.data_dir / "replay"
    found = replay.run(replay.Replay(rows, load_ratio, engines, speed, policy, chaos, data_dir), CLOCK, output)
    replay.show(found, output)
    end(0 if found.is_clean() else process.EXIT_FINDING)


@app.command("simulate")
def simulate_command(  # noqa: PLR0913 - each is an option of the command
    trace: Annotated[
        Path | None,
        typer.Argument(help="CSV: arrival_s, input_tokens, output_tokens; optional service, tenant, priority."),
    ] = None,
    *,
    load_ratio: Annotated[float, typer.Option("--load", min=0.01, help="Relative to measured saturation.")] = 0.95,
    policy: Annotated[Policy, typer.Option(help="ours, or what it is compared with.")] = "ours",
    engine: Annotated[str, typer.Option(help="Preset of the simulated engines.")] = "a100-8b",
    engines: Annotated[int, typer.Option(min=1, help="How many.")] = 4,
    seed: Annotated[
        int, typer.Option(help="Of placement's draws, and of the generated load when no trace is named.")
    ] = 1,
    offset: Annotated[float, typer.Option(min=0, max=1, help="Part of the trace's time at which it begins.")] = 0.0,
    limit: Annotated[int | None, typer.Option(min=2, help="Rows of the trace, from the first.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report with plots, beside FIFO.")] = None,
    is_compiled: Annotated[
        bool, typer.Option("--compiled", help="Twice as fast, the same figures; needs mypy and a C compiler.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a trace through the policies of production in virtual time; figures in simulated seconds."""
    output = Output(CLOCK, as_json=as_json)
    if is_compiled:
        from rampmeter.simulation import compiled  # noqa: PLC0415

        compiled.go_on(output.say)
    from rampmeter import simulate_command as simulate  # noqa: PLC0415 - see the module's docstring

    options = simulate.Options(trace, policy, load_ratio, engine, engines, seed, offset, limit, html)
    simulate.show(simulate.run(options, CLOCK, output), output)


@app.command("audit")
def audit_command(
    *,
    since: Annotated[str, typer.Option(help="How far back: 90, 90s, 10m, 2h.")] = "6h",
    pending: Annotated[str, typer.Option(help="How long answer and charge may take when nothing older waits.")] = "2m",
    as_json: Json = False,
) -> None:
    """Reconcile requests, replies, usage and charges from the topics alone; status 1 when anything is wrong."""
    from rampmeter import audit, durations, lag  # noqa: PLC0415 - see the module's docstring

    settings = state.connect(StreamsSettings)
    now_s = CLOCK.wall_s()
    since_s = now_s - durations.parse(since, "--since")
    clients.require_kafka(settings)
    ledger = audit.read(settings, since_s)
    waiting_s = max((row.oldest_age_s for row in lag.read(settings) if row.lag_records), default=0.0)
    found = audit.report(ledger, now_s, durations.parse(pending, "--pending") + waiting_s)
    audit.show(found, Output(CLOCK, as_json=as_json))
    end(0 if found.is_clean() else process.EXIT_FINDING)


@app.command("lag")
def lag_command(*, as_json: Json = False) -> None:
    """What waits: records, age of the oldest and cost, by pool; status 69 when it cannot be read."""
    from rampmeter import lag  # noqa: PLC0415 - see the module's docstring

    settings = state.connect(Settings)
    clients.require_kafka(settings)
    try:
        rows = lag.read(settings)
    except LagUnavailable as error:
        servers = settings.kafka.get("bootstrap.servers", "")
        raise DependencyDown(f"the lag cannot be read: {error}", servers, "Try again in a moment.") from error
    output = Output(CLOCK, as_json=as_json)
    if as_json:
        output.result({"lanes": rows})
    else:
        output.text(lag.render(rows))


explain_command.register(app)
doctor_command.register(app)
top_command.register(app)
control_commands.register(app)
serve_command.register(app)
console_command.register(app)
hindsight_commands.register(app)
comparison_commands.register(app)
chaos_command.register(app)
app.add_typer(dlq_commands.dlq_app, name="dlq")
app.add_typer(autoscaler_commands.autoscaler_app, name="autoscaler")


def _run() -> int:
    try:
        app()
    except SystemError as error:  # how librdkafka's client passes Ctrl-C on
        if isinstance(error.__cause__, KeyboardInterrupt):
            return INTERRUPTED
        raise
    except DependencyDown as error:
        raise DependencyDown(error.what, error.where, error.fix + state.hint(error.where)) from error
    except ConfigError:
        raise
    except PipelineError as error:
        sys.stderr.write(f"{error}\n")
        return process.EXIT_FINDING
    return 0


def main() -> None:
    """Run the command; its status is the process's."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is stopped in order
    sys.exit(process.exit_status(_run))
