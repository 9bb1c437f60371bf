"""The door's metrics.  Labels are closed lists; no id, key or tenant is in them."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

ROUTES = ("chat", "enqueue", "fetch", "cancel", "models", "other")
STATUSES = (200, 202, 400, 401, 404, 405, 408, 409, 413, 429, 500, 502, 503, 504)
_WAITS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """One door's."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.requests = Counter(
            "rampmeter_door_requests_total",
            "HTTP requests by route and status; one that left before its answer began has none.",
            ("route", "status"),
            registry=registry,
        )
        self.open = Gauge(
            "rampmeter_door_open_requests", "Requests whose answer is waited for or streamed.", registry=registry
        )
        self.waits = Histogram(
            "rampmeter_door_wait_seconds",
            "From the arrival of a chat request to the first byte of its answer.",
            buckets=_WAITS_S,
            registry=registry,
        )
        self.disconnects = Counter(
            "rampmeter_door_disconnects_total",
            "Clients that left before their answer was whole; without an Idempotency-Key the request is cancelled.",
            registry=registry,
        )
        self.breaks = Counter(
            "rampmeter_door_broken_streams_total",
            "Streams that ended with an error event: the answer began again, lost pieces, failed or came too late.",
            registry=registry,
        )
        for route in ROUTES:
            for status in STATUSES:
                self.requests.labels(route, str(status))
