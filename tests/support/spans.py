"""A real SDK of OpenTelemetry that keeps what it is told, for one test."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from topics import tracing


@pytest.fixture
def told(monkeypatch):
    """Reads the spans that ended so far, in that order."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("test"))
    monkeypatch.setattr(tracing, "listens", lambda: True)
    return exporter.get_finished_spans
