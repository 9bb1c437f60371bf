"""The span of sending a request: a child of the caller's current one, whose context goes with the record."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from rampmeter.ask import Ask, Letter
from topics import tracing
from topics.clock import Clock


@contextmanager
def sending(ask: Ask, letter: Letter, clock: Clock) -> Iterator[None]:
    """Put the context into the letter's headers; the span is over when the block is.

    Without an SDK the context that the caller has is passed on as it is.
    """
    current = trace.get_current_span()
    parent = current if current.get_span_context().is_valid else ask.trace
    attributes = {
        **tracing.operation("send"),
        "messaging.destination.name": letter.topic,
        "rampmeter.request.id": ask.id,
        "rampmeter.tenant": ask.tenant,
    }
    span = tracing.begin(f"send {letter.topic}", SpanKind.PRODUCER, clock.wall_s(), attributes, parent)
    context = tracing.context_of(span)
    if context is not None:
        letter.headers.extend(context.headers())
    try:
        yield
    except BaseException as error:
        tracing.end(span, clock.wall_s(), error=type(error).__name__)
        raise
    tracing.end(span, clock.wall_s())
