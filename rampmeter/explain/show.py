"""A timeline for people."""

from collections.abc import Iterator
from datetime import UTC, datetime

from rampmeter.columns import printable, render
from rampmeter.explain.events import Event, Field, Price, Timeline
from topics.timing import Waits

_TITLES = ("TIME (UTC)", "AFTER S", "STEP", "WHAT", "BY", "RECORD")
_SHOWN_COMPANIONS = 8


def text(found: Timeline) -> str:
    """What is known in general, a line for each step with its facts below it, and what is not in the log."""
    return "\n".join([*_head(found), "", *_steps(found.events), "", *_tail(found)]).rstrip()


def _head(found: Timeline) -> Iterator[str]:
    why = f" ({found.reason})" if found.reason else ""
    yield printable(f"{found.id}: {found.state}{why}")
    what = {"tenant": found.tenant, "model": found.model, "class": found.priority, "length": found.length,
            "pool": found.pool}  # fmt: skip
    yield "  " + ", ".join(f"{name} {printable(value)}" for name, value in what.items() if value)
    if found.price is not None:
        yield f"  priced at {_price(found.price)}"
    if found.cost_units is not None and found.attempts:
        yield f"  cost {found.cost_units:g} units, {found.attempts} attempt{'s' * (found.attempts > 1)}"
    if found.waits is not None:
        yield f"  waits: {_waits(found.waits)}"


def _price(price: Price) -> str:
    learned = "learned" if price.is_learned else "declared or default"
    parts = ""
    if price.input_units is not None and price.output_units is not None:
        parts = (
            f" = {price.input_units:g} for {price.prompt_tokens} prompt tokens"
            f" + {price.output_units:g} for {price.expected_output_tokens} output tokens ({learned})"
        )
    limit = "" if price.long_units is None else f"; long above {price.long_units:g} units"
    return f"{price.cost_units:g} units{parts}, coefficient {price.coefficient}, {price.length}{limit}"


def _waits(waits: Waits) -> str:
    named = {"queued": waits.queued_s, "to its lane": waits.admitted_s, "on it": waits.lane_s,
             "in the engine": waits.engine_s, "first token after": waits.first_token_s}  # fmt: skip
    return ", ".join(f"{name} {value:.3f} s" for name, value in named.items() if value is not None)


def _steps(events: list[Event]) -> Iterator[str]:
    rows = [
        (
            datetime.fromtimestamp(event.at_s, UTC).strftime("%H:%M:%S.%f")[:-3],
            "" if event.after_s is None else f"{event.after_s:.3f}",
            event.step.value,
            event.what + (f" ({event.times} times)" if event.times > 1 else ""),
            event.by or "",
            event.record or "",
        )
        for event in events
    ]
    first, *lines = render(_TITLES, rows, right=(1,)).split("\n")
    yield first
    for line, event in zip(lines, events, strict=True):
        yield line
        if event.facts:
            yield printable("      " + ", ".join(f"{name}={_said(value)}" for name, value in event.facts.items()))


def _said(value: Field) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tail(found: Timeline) -> Iterator[str]:
    if found.batched:
        named = [f"{one.id} ({one.together_s:.2f} s)" for one in found.batched_with[:_SHOWN_COMPANIONS]]
        more = found.batched - len(named)
        yield printable(f"in the engine with {', '.join(named)}" + (f" and {more} more" if more > 0 else ""))
    for what in found.missing:
        yield f"not in the log: {what}"
