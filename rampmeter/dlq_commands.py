"""`rampmeter dlq`: options and wiring.  What it runs is imported only when it runs."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from rampmeter import durations, state
from rampmeter.options import CLOCK, Json, end
from rampmeter.output import Output
from rampmeter.settings import StackSettings
from rampmeter.signing import Signer
from topics import clients
from topics.outcomes import Reason
from topics.settings import Settings, load

if TYPE_CHECKING:
    from rampmeter.dead_letters import Filter

dlq_app = typer.Typer(help="Look at the dead letters, and send their requests again.", no_args_is_help=True)

Since = Annotated[str, typer.Option(help="No older than this: 90, 90s, 10m, 2h.")]
Until = Annotated[str, typer.Option(help="No younger than this.")]
Reasons = Annotated[
    list[str] | None, typer.Option("--reason", metavar="REASON", help="Only for this; may be repeated.")
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="PART", help="Only of topics with this in their names.")
]


@dlq_app.command("ls")
def dlq_ls(
    *,
    reason: Reasons = None,
    topic: Topics = None,
    since: Since = "6h",
    until: Until = "0s",
    limit: Annotated[int, typer.Option(min=1, help="At most the newest this many.")] = 50,
    as_json: Json = False,
) -> None:
    """List the dead letters, the newest last."""
    from rampmeter import dlq  # noqa: PLC0415 - see the module's docstring

    wanted = _filter(reason, topic, since, until)
    dlq.list_letters(_connect(), wanted, limit, CLOCK, Output(CLOCK, as_json=as_json))


@dlq_app.command("show")
def dlq_show(
    number: Annotated[int, typer.Argument(min=0, help="As `dlq ls` shows it.")],
    *,
    body: Annotated[bool, typer.Option("--body", help="Print the request's text too.")] = False,
    as_json: Json = False,
) -> None:
    """Show one letter, and the record that it refers to; status 1 when there is no such letter."""
    from rampmeter import dlq  # noqa: PLC0415 - see the module's docstring

    dlq.show_letter(_connect(), number, CLOCK, Output(CLOCK, as_json=as_json), with_body=body)


@dlq_app.command("replay")
def dlq_replay(  # noqa: PLR0913 - each is an option of the command
    numbers: Annotated[list[int] | None, typer.Argument(min=0, help="As `dlq ls` shows them.")] = None,
    *,
    replay_all: Annotated[
        bool, typer.Option("--all", help="Instead of numbers: all that the filters let pass.")
    ] = False,
    reason: Reasons = None,
    topic: Topics = None,
    since: Since = "6h",
    until: Until = "0s",
    limit: Annotated[int, typer.Option(min=1, help="With --all: at most the oldest this many.")] = 1000,
    drop_deadline: Annotated[bool, typer.Option("--drop-deadline", help="Send without a deadline.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing, say what would be.")] = False,
    as_json: Json = False,
) -> None:
    """Send the requests of dead letters again, as new requests; status 1 when one could not be."""
    from rampmeter import dead_letters, dlq  # noqa: PLC0415 - see the module's docstring

    if bool(numbers) == replay_all:
        raise typer.BadParameter("name letters by their numbers, or use --all with filters")
    wanted = _filter(reason, topic, since, until)
    settings = _connect()
    letters: list[int | dead_letters.Filed] = list(dict.fromkeys(numbers or ()))
    if replay_all:
        letters = list(islice(dead_letters.listed(settings, wanted), limit))
        if len(letters) == limit:
            Output(CLOCK).say(f"the oldest {limit} are replayed (--limit); there may be more")
    manner = dead_letters.Manner(not drop_deadline, Signer.of(load(StackSettings).signing))
    asked = dlq.Replay(letters, manner, dry_run)
    end(dlq.replay_letters(settings, asked, CLOCK, Output(CLOCK, as_json=as_json)))


def _connect() -> Settings:
    settings = state.connect(Settings)
    clients.require_kafka(settings)
    return settings


def _filter(reason: list[str] | None, topic: list[str] | None, since: str, until: str) -> "Filter":
    from rampmeter.dead_letters import Filter  # noqa: PLC0415 - see the module's docstring

    if unknown := sorted(set(reason or ()) - set(Reason)):
        raise typer.BadParameter(f"--reason {', '.join(unknown)} is none of {', '.join(Reason)}")
    now_s = CLOCK.wall_s()
    return Filter(
        now_s - durations.parse(since, "--since"),
        now_s - durations.parse(until, "--until"),
        tuple(Reason(word) for word in reason or ()),
        tuple(topic or ()),
    )
