"""Spans of OpenTelemetry, made only where an SDK is set up.  They hold names, ids, sizes and outcomes, never a text.

Their times are those of our clock, so that the shell can tell of what is over.
"""

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from topics.errors import ConfigError
from topics.records import Work
from topics.settings import Settings
from topics.trace_context import PARENT_HEADER, STATE_HEADER, TraceContext

Attributes = Mapping[str, AttributeValue | None]
"""What is None is left out."""

ERROR_TYPE: Final = "error.type"
_tracer = trace.get_tracer("rampmeter")
_propagator = TraceContextTextMapPropagator()
_NS = 1_000_000_000


def listens() -> bool:
    """Whether an SDK is set up, ours or that of the program around us."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def telling(settings: Settings, service: str, instance: str | None = None) -> Iterator[None]:
    """Within it spans go to the collector of the settings, if they name one; what is left at its end is sent.

    Raises ConfigError when the packages of the extra `otel` are missing.  An SDK that is there already stays.
    """
    if settings.tracing.endpoint is None or listens():
        yield
        return
    try:
        from topics import tracing_sdk  # noqa: PLC0415 - the extra `otel`
    except ModuleNotFoundError as error:
        problem = f"tracing.endpoint needs the package {error.name}: pip install 'rampmeter[otel]'"
        raise ConfigError([problem]) from error
    instance = instance or f"{socket.gethostname()}-{os.getpid()}"
    stop = tracing_sdk.start(settings.tracing, settings.tracing.endpoint, service, instance)
    try:
        yield
    finally:
        # A collector that is away must not hold up the end.
        last = threading.Thread(target=stop, name="tracing", daemon=True)
        last.start()
        last.join(settings.tracing.export_timeout_s)


def operation(name: str) -> Attributes:
    """What a span of the semantic conventions for messaging does on Kafka: send, receive or process."""
    return {"messaging.system": "kafka", "messaging.operation.name": name, "messaging.operation.type": name}


def begin(
    name: str,
    kind: SpanKind,
    at_s: float,
    attributes: Attributes,
    parent: TraceContext | Span | None = None,
    links: Sequence[SpanContext] = (),
) -> Span:
    """Begin a span at a moment of the wall clock, a root without `parent`; only `end` makes it seen."""
    return _tracer.start_span(
        name,
        _within(parent),
        kind,
        {name: value for name, value in attributes.items() if value is not None},
        [Link(link) for link in links],
        start_time=_ns(at_s),
    )


def end(span: Span, at_s: float, attributes: Attributes | None = None, error: str | None = None) -> None:
    """End it; `error` is one of a closed list of words."""
    for name, value in (attributes or {}).items():
        if value is not None:
            span.set_attribute(name, value)
    if error is not None:
        span.set_attribute(ERROR_TYPE, error)
        span.set_status(StatusCode.ERROR)
    span.end(_ns(at_s))


def context_of(span: Span) -> TraceContext | None:
    """What is passed on to those who continue it; None for one that belongs to no trace."""
    headers: dict[str, str] = {}
    _propagator.inject(headers, trace.set_span_in_context(span, Context()))
    parent = headers.get(PARENT_HEADER)
    return None if parent is None else TraceContext(parent, headers.get(STATE_HEADER))


def link_to(context: TraceContext) -> SpanContext:
    """For a span that belongs to another trace."""
    return trace.get_current_span(_within(context)).get_span_context()


def continued(work: Work, span: Span) -> Work:
    """The same work, whose next hop continues `span`."""
    context = context_of(span)
    if context is None:
        return work
    request = msgspec.structs.replace(work.request, traceparent=context.parent, tracestate=context.state)
    return msgspec.structs.replace(work, request=request)


def _within(parent: TraceContext | Span | None) -> Context:
    """Never the caller's current context: its spans are of other requests."""
    if parent is None:
        return Context()
    if isinstance(parent, TraceContext):
        return _propagator.extract(parent.texts(), Context())
    return trace.set_span_in_context(parent, Context())


def _ns(at_s: float) -> int:
    return int(at_s * _NS)
