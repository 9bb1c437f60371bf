"""What streams tell OpenTelemetry: a span for each request that is admitted or not, and one for each micro-batch.

A request's span continues its sender's trace and ends with its verdict; a wait in memory is inside it.  A batch links
to the traces of what is in it.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from faust.types import EventT
from opentelemetry.trace import Span, SpanKind

from streams import batches
from streams.cases import Case
from streams.holding import Pending
from streams.policy.admission import Hold, Reject
from streams.policy.verification import Refusal
from streams.settings import StreamsSettings
from topics import catalog, codec, trace_context, tracing
from topics.records import Origin, Work
from topics.trace_context import TraceContext
from topics.tracing import Attributes


class Tracing:
    """One for all that a worker admits.  Without an SDK, and in a shadow, nothing is made."""

    def __init__(self, settings: StreamsSettings) -> None:
        self._serves = settings.streams.shadow is None
        self._usage = settings.topic("usage")
        self._group = {"messaging.consumer.group.name": catalog.streams_group(settings)}

    def begin(self, pendings: Iterable[Pending], now_s: float) -> None:
        """Begin the spans of those that have none; what is written about them from now on continues these."""
        if not self._serves or not tracing.listens():
            return
        for pending in pendings:
            if pending.span is None:
                candidate = pending.candidate
                pending.span = span = self._process(candidate.item, now_s)
                pending.candidate = dataclasses.replace(candidate, item=_continued(candidate.item, span))

    def end(self, cases: Sequence[Case], since_s: float, now_s: float) -> None:
        """End the spans of those that ended here, and tell of the batch, if there were any."""
        links = []
        for case in cases:
            span = case.pending.span
            if span is not None and not isinstance(case.verdict, Hold):
                tracing.end(span, now_s, _fate(case), _error(case))
                links.append(span.get_span_context())
        if links:
            received = {**tracing.operation("receive"), **self._group, "messaging.batch.message_count": len(cases)}
            batch = tracing.begin("receive requests", SpanKind.CLIENT, since_s, received, links=links)
            tracing.end(batch, now_s)

    def settled(self, events: Sequence[EventT], since_s: float, now_s: float) -> None:
        """Tell of a micro-batch of usage, with a link to the trace of each attempt."""
        if not tracing.listens():
            return
        traces = [trace_context.of(codec.read_headers(batches.headers_of(event))) for event in events]
        links = [tracing.link_to(trace) for trace in traces if trace is not None]
        attributes = {
            **tracing.operation("process"),
            **self._group,
            "messaging.destination.name": self._usage,
            "messaging.batch.message_count": len(events),
        }
        span = tracing.begin(f"process {self._usage}", SpanKind.CONSUMER, since_s, attributes, links=links)
        tracing.end(span, now_s)

    def _process(self, item: Work | Refusal, now_s: float) -> Span:
        origin, trace, about = _source(item)
        attributes = {
            **tracing.operation("process"),
            **self._group,
            "messaging.destination.name": origin.topic,
            "messaging.destination.partition.id": str(origin.partition),
            "messaging.kafka.offset": origin.offset,
            **about,
        }
        return tracing.begin(f"process {origin.topic}", SpanKind.CONSUMER, now_s, attributes, trace)


class _Source(NamedTuple):
    """Where a request came from, the trace that it is part of, and what it is."""

    origin: Origin
    trace: TraceContext | None
    about: Attributes


def _source(item: Work | Refusal) -> _Source:
    if isinstance(item, Refusal):
        return _Source(item.origin, item.trace, {"rampmeter.request.id": item.id, "rampmeter.tenant": item.tenant})
    request, price = item.request, item.price
    about = {
        "rampmeter.request.id": request.id,
        "rampmeter.tenant": request.tenant,
        "rampmeter.priority": request.priority.value,
        "rampmeter.length": price.length.value,
        "rampmeter.pool": price.pool,
        "rampmeter.cost_units": price.cost_units,
        "rampmeter.deferrals": item.deferrals,
        "gen_ai.request.model": request.model,
    }
    return _Source(request.origin, trace_context.of(request), about)


def _continued(item: Work | Refusal, span: Span) -> Work | Refusal:
    if isinstance(item, Work):
        return tracing.continued(item, span)
    return dataclasses.replace(item, trace=tracing.context_of(span))


def _fate(case: Case) -> Attributes:
    """Without a verdict it is refused as it is, or was decided before."""
    if isinstance(case.pending.candidate.item, Refusal):
        return {"rampmeter.verdict": "refuse"}
    verdict = "repeat" if case.verdict is None else type(case.verdict).__name__.lower()
    return {"rampmeter.verdict": verdict, "rampmeter.reason": getattr(case.verdict, "reason", None)}


def _error(case: Case) -> str | None:
    """The reason of a refusal; its words for people are left out."""
    item = case.pending.candidate.item
    if isinstance(item, Refusal):
        return item.reason.value
    return case.verdict.reason.value if isinstance(case.verdict, Reject) else None
