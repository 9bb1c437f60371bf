"""`rampmeter submit`: one request, its answer on stdout."""

from dataclasses import dataclass

from rampmeter import streaming
from rampmeter.client import Ask, Client, NoAnswer, text_of
from rampmeter.output import Output
from rampmeter.settings import StackSettings
from rampmeter.signing import Signer
from rampmeter.streaming import Pieces
from topics import clients, process, tracing
from topics.clock import Clock
from topics.outcomes import Outcome
from topics.records import Reply
from topics.settings import Settings, load
from topics.timing import Waits


@dataclass(frozen=True, slots=True)
class Route:
    """Where the answer comes to (None: the default topic), and how long it is waited for."""

    reply_topic: str | None
    timeout_s: float


def run(settings: Settings, ask: Ask, route: Route, clock: Clock, output: Output) -> int:
    """Send, wait, print; 0 when completed, 1 for any other outcome."""
    clients.require_kafka(settings)
    signer = Signer.of(load(StackSettings).signing)
    with (
        tracing.telling(settings, "rampmeter-submit"),
        Client(settings, clock, route.reply_topic, signer) as client,
    ):
        pieces = Pieces()
        for answer in client.stream(ask, route.timeout_s):
            if isinstance(answer, Reply):
                return _finish(answer, pieces, output)
            taken = streaming.take(pieces, answer)
            pieces = taken.pieces
            if taken.begins_again:
                output.text("")
                output.say("its consumer or engine failed; the answer begins again")
            output.text(text_of(answer), end="")
    raise NoAnswer(ask.id, route.timeout_s)


def _finish(reply: Reply, pieces: Pieces, output: Output) -> int:
    if output.as_json:
        output.result(reply)
    elif reply.outcome is Outcome.COMPLETED:
        output.text(_rest(reply, pieces, output))
    if reply.outcome is not Outcome.COMPLETED:
        retry = "" if reply.retry_after_s is None else f"; try again in {reply.retry_after_s:.1f} s"
        output.say(f"{reply.outcome} ({reply.reason}): {reply.detail or 'no detail'}{retry}")
    if not output.as_json:
        output.say(f"id {reply.id}" if reply.waits is None else f"id {reply.id}: {_spent(reply.waits)}")
    return 0 if reply.outcome is Outcome.COMPLETED else process.EXIT_FINDING


def _rest(reply: Reply, pieces: Pieces, output: Output) -> str:
    """The text that was not shown yet: all of it where pieces of the stream never came."""
    missing = pieces.lacks(reply)
    if missing and pieces.next_seq:
        output.text("")
        output.say(f"{missing} pieces of the stream never came; the whole answer again")
    return text_of(reply) if missing or not pieces.next_seq else ""


def _spent(waits: Waits) -> str:
    """Where the time went, as people read it."""
    named = {
        "queued": waits.queued_s,
        "to its lane": waits.admitted_s,
        "on it": waits.lane_s,
        "in the engine": waits.engine_s,
    }
    parts = [f"{name} {seconds:.2f} s" for name, seconds in named.items() if seconds is not None]
    first = "" if waits.first_token_s is None else f" (first token after {waits.first_token_s:.2f} s)"
    return ", ".join(parts) + first
