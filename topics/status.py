"""Each process's /metrics, /livez and /readyz, in a thread of its own so that a stuck loop can still be seen."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

from topics.errors import DependencyDown

Probe = Callable[[], str | None]
"""None when all is well, else what is wrong in one sentence."""


class StatusServer:
    """Serves the three paths; 503 with the reason when a probe complains."""

    def __init__(
        self, host: str, port: int, *, live: Probe, ready: Probe, registry: CollectorRegistry = REGISTRY
    ) -> None:
        """Bind at once, so that a taken port is known before any work starts."""
        probes = {"/livez": live, "/readyz": ready}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                elif path in probes:
                    complaint = probes[path]()
                    self._answer(
                        503 if complaint else 200, "text/plain; charset=utf-8", (complaint or "ok").encode() + b"\n"
                    )
                else:
                    self._answer(404, "text/plain", b"/metrics, /livez or /readyz\n")

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing: a probe every second is not news."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            fix = "End the process that holds it, or set RAMPMETER_STATUS_PORT (0 takes a free one)."
            raise DependencyDown(f"cannot listen: {error.strerror}", f"{host}:{port}", fix) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="status", daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self._server.server_address[0]!s}:{self.port}"

    @property
    def port(self) -> int:
        """The same, where the host is known."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Serve until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
