"""The SDK of OpenTelemetry for a process of ours: the packages of the extra `otel`, imported nowhere else."""

from collections.abc import Callable
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from topics.tracing_settings import Tracing

_MS = 1000
_BATCH_SPANS = 512


def start(settings: Tracing, endpoint: str, service: str, instance: str) -> Callable[[], None]:
    """Send what is told to a collector from now on; returns what sends the rest and ends it.

    `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over `service` and `instance`.
    """
    ours = {"service.name": service, "service.instance.id": instance, "service.version": version("rampmeter")}
    by_ratio = TraceIdRatioBased(settings.sample_ratio)
    provider = TracerProvider(
        # A sender's flag does not decide how much is told.
        sampler=ParentBased(by_ratio, remote_parent_sampled=by_ratio),
        resource=Resource.create(ours).merge(OTELResourceDetector().detect()),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=settings.export_timeout_s)
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=settings.queue_spans,
            schedule_delay_millis=settings.export_every_s * _MS,
            max_export_batch_size=min(_BATCH_SPANS, settings.queue_spans),
        )
    )
    trace.set_tracer_provider(provider)
    return provider.shutdown
