"""A collector of OpenTelemetry on loopback: takes OTLP over HTTP and keeps the spans."""

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Told:
    """One span."""

    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    attributes: dict
    links: tuple
    is_error: bool
    start_s: float
    end_s: float

    @property
    def context(self):
        return f"00-{self.trace}-{self.id}-01"


class Collector:
    """Use in a `with` block."""

    def __init__(self):
        self.bodies, self.spans = [], []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                collector.take(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def take(self, body):
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            self.spans += [_told(service, span) for scope in resource.scope_spans for span in scope.spans]

    def trace(self, trace_id):
        """Its spans by name; one of a name that comes twice is the later."""
        mine = [span for span in self.spans if span.trace == trace_id]
        return {span.name: span for span in sorted(mine, key=lambda span: span.start_s)}


def _told(service, span):
    return Told(
        service, span.name, span.kind, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
        _attributes(span.attributes), tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        span.status.code == span.status.STATUS_CODE_ERROR,
        span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9,
    )  # fmt: skip


def _attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
