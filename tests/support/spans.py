"""A real SDK of OpenTelemetry that keeps what it is told, for one test."""

import pytest

from topics import tracing


@pytest.fixture
def told(monkeypatch):
    """Reads the spans that ended so far, in that order."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel; vLLM's environment has none")
    from opentelemetry.sdk.trace import export
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("test"))
    monkeypatch.setattr(tracing, "listens", lambda: True)
    return exporter.get_finished_spans
