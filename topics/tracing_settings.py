"""Settings of what is told to OpenTelemetry."""

from typing import Annotated

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from topics.section import Section


def _endpoint(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        message = "must start with http:// or https://; it is a collector's address for OTLP/HTTP"
        raise ValueError(message)
    return value.rstrip("/")


class Tracing(Section):
    """Where spans go.  Headers, certificates and compression are those of OpenTelemetry's own `OTEL_*` variables."""

    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None
    """OTLP/HTTP address of a collector, such as http://collector:4318; None: no spans but those of an SDK around us."""
    sample_ratio: float = Field(1.0, ge=0, le=1)
    """Share of the traces that is told, by their id, so that all processes tell the same; a sender's flag only lowers
    it.  Too small: the trace one looks for is missing.  Too large: CPU and storage for each request."""
    queue_spans: PositiveInt = 4096
    """Those that wait for the collector; more are dropped.  Too small: holes in bursts.  Too large: memory."""
    export_every_s: PositiveFloat = 1.0
    """Too small: many small calls.  Too large: traces show late, and a killed process takes as much with it."""
    export_timeout_s: PositiveFloat = 5.0
    """Also of the last export, when the process ends.  Too small: a slow collector gets nothing.  Too large: as long
    until a process ends whose collector is away."""
