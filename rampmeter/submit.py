"""`rampmeter submit`: one request, its answer on stdout."""

from dataclasses import dataclass

from rampmeter.client import Ask, Client, NoAnswer, text_of
from rampmeter.output import Output
from rampmeter.settings import StackSettings
from rampmeter.signing import Signer
from topics import clients, process
from topics.clock import Clock
from topics.errors import DependencyDown
from topics.outcomes import Outcome
from topics.records import Reply
from topics.settings import Settings, load


@dataclass(frozen=True, slots=True)
class Route:
    """Where the answer comes to (None: the default topic), and how long it is waited for."""

    reply_topic: str | None
    timeout_s: float


def run(settings: Settings, ask: Ask, route: Route, clock: Clock, output: Output) -> int:
    """Send, wait, print; 0 when completed, 1 for any other outcome."""
    try:
        clients.require_kafka(settings)
    except DependencyDown as error:
        fix = f"{error.fix} A local stack is started by `rampmeter up` and found from its folder."
        raise DependencyDown(error.what, error.where, fix) from error
    signer = Signer.of(load(StackSettings).signing)
    with Client(settings, clock, route.reply_topic, signer) as client:
        run: tuple[int, str | None] | None = None
        for answer in client.stream(ask, route.timeout_s):
            if isinstance(answer, Reply):
                return _finish(answer, output, is_shown=ask.stream)
            if run not in {None, (answer.attempt, answer.consumer)}:
                output.text("")
                output.say("its consumer failed; the answer begins again")
            run = answer.attempt, answer.consumer
            output.text(text_of(answer), end="")
    raise NoAnswer(ask.id, route.timeout_s)


def _finish(reply: Reply, output: Output, *, is_shown: bool) -> int:
    if output.as_json:
        output.result(reply)
    elif reply.outcome is Outcome.COMPLETED:
        output.text("" if is_shown else text_of(reply))
    if reply.outcome is Outcome.COMPLETED:
        return 0
    retry = "" if reply.retry_after_s is None else f"; try again in {reply.retry_after_s:.1f} s"
    output.say(f"{reply.outcome} ({reply.reason}): {reply.detail or 'no detail'}{retry}")
    return process.EXIT_FINDING
