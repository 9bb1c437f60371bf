"""What a consumer tells OpenTelemetry: of each attempt how it was processed, its run in the engine and its answer.

All of an attempt is told when it is over, since what is cut off in between is another's to tell.
"""

from collections.abc import Sequence

from opentelemetry.trace import Span, SpanKind

from gpu_consumers.answering import Used, used_by
from gpu_consumers.assignment import Entry
from gpu_consumers.settings import GpuSettings
from topics import catalog, trace_context, tracing
from topics.outcomes import Outcome
from topics.records import Reply
from topics.tracing import Attributes

_OVER_HTTP = {"openai", "llama"}


class Tracing:
    """Stateless.  Without an SDK nothing is made."""

    def __init__(self, settings: GpuSettings) -> None:
        self._engine, self._pool = settings.gpu.engine, settings.gpu.pool
        self._kind = SpanKind.CLIENT if self._engine in _OVER_HTTP else SpanKind.INTERNAL
        self._group = {"messaging.consumer.group.name": catalog.gpu_group(settings, settings.gpu.pool)}

    def batch(self, entries: Sequence[Entry], now_s: float) -> None:
        """Tell what was given to the engine together; their spans will link to it, as it does to their requests'."""
        if not tracing.listens():
            return
        traces = [trace_context.of(entry.work.request) for entry in entries]
        links = [tracing.link_to(trace) for trace in traces if trace is not None]
        attributes = {**tracing.operation("receive"), **self._group, "messaging.batch.message_count": len(entries)}
        span = tracing.begin(f"receive lanes.{self._pool}", SpanKind.CLIENT, now_s, attributes, links=links)
        tracing.end(span, now_s)
        for entry in entries:
            entry.batch = span.get_span_context()

    def answered(self, entry: Entry, reply: Reply, topic: str, now_s: float) -> Span | None:
        """Tell of an attempt that ended in this answer; returns the span of its sending, which the broker ends."""
        if not tracing.listens():
            return None
        used = used_by(reply, entry.work.request.arrived_s, None)
        process = self._attempt(entry, used, None if reply.outcome is Outcome.COMPLETED else reply.reason.value)
        sends = {**tracing.operation("send"), "messaging.destination.name": topic}
        return tracing.begin(f"send {topic}", SpanKind.PRODUCER, now_s, sends, process)

    def cut_short(self, entry: Entry, used: Used) -> None:
        """Tell of an attempt that another follows, here or elsewhere."""
        if tracing.listens():
            self._attempt(entry, used, "attempt_failed")

    def _attempt(self, entry: Entry, used: Used, error: str | None) -> Span:
        request, fetched = entry.work.request, entry.fetched
        attributes = {
            **tracing.operation("process"),
            **self._group,
            "messaging.destination.name": fetched.assignment.topic,
            "messaging.destination.partition.id": str(fetched.assignment.partition),
            "messaging.kafka.offset": fetched.offset,
            "rampmeter.request.id": request.id,
            "rampmeter.tenant": request.tenant,
            "rampmeter.attempt": used.attempt,
            "rampmeter.outcome": used.outcome.value,
        }
        since_s = used.finished_s if used.started_s is None else used.started_s
        links = () if entry.batch is None else (entry.batch,)
        name = f"process {fetched.assignment.topic}"
        process = tracing.begin(name, SpanKind.CONSUMER, since_s, attributes, trace_context.of(request), links)
        if used.started_s is not None:
            self._engine_run(process, entry, used, error)
        tracing.end(process, used.finished_s, error=error)
        return process

    def _engine_run(self, process: Span, entry: Entry, used: Used, error: str | None) -> None:
        request, since_s, first_s = entry.work.request, used.started_s or used.finished_s, entry.first_token_s
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self._engine,
            "gen_ai.request.model": request.model,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.stream": request.stream,
            "gen_ai.usage.input_tokens": used.tokens.prompt,
            "gen_ai.usage.output_tokens": used.tokens.output,
            "gen_ai.usage.cache_read.input_tokens": used.tokens.cached,
            "gen_ai.response.time_to_first_chunk": None if first_s is None else max(0.0, first_s - since_s),
        }
        run = tracing.begin(f"chat {request.model}", self._kind, since_s, attributes, process)
        tracing.end(run, used.finished_s, error=error)
