"""What a consumer tells about itself: to placement, to the autoscaler, to people."""

from topics.bounds import Celsius, Count, Seconds, Share, Units, UnixSeconds
from topics.records import Record


class Telemetry(Record, frozen=True, kw_only=True):
    """A consumer's state, about once a second; the last one per consumer counts."""

    consumer: str
    pool: str
    state: str
    """`ready`, `draining` or `gone`."""
    at_s: UnixSeconds
    role: str | None = None
    """`general`, `short` or `long`: the length that it is there for; absent is general."""
    gpu_type: str | None = None
    """As its settings say."""
    lanes: dict[str, list[Count]] = {}
    """Owned partitions by lane topic."""
    queued_units: Units = 0.0
    inflight_units: Units = 0.0
    inflight_requests: Count = 0
    free_kv_tokens: Count | None = None
    dispatched_units_total: Units = 0.0
    finished_units_total: Units = 0.0
    latency_ewma_s: Seconds | None = None
    gpu_memory_used_ratio: Share | None = None
    gpu_temperature_c: Celsius | None = None
    gpu_busy_ratio: Share | None = None
    intake: str | None = None
    """Why nothing new is taken in: `closed by temperature`, `memory`, `engine` or several of them."""
    engine_running: Count | None = None
    engine_waiting: Count | None = None
    """Jobs inside the engine that it has not begun; high means that the order is decided there."""
    ttft_ewma_s: Seconds | None = None
    """From the engine's door to the first token."""
    total_kv_tokens: Count | None = None
    capacity_units_per_s: Units | None = None
    """Rate of finished cost while work waited; absent until that was seen for long enough."""
    capacity_units: Units | None = None
    """Cost in the engine while work waited: what it holds when it is full; absent as above."""

    @property
    def takes_work(self) -> bool:
        """Whether what is placed on it is begun."""
        return self.state == "ready" and self.intake is None
