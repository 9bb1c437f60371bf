"""What a streams worker counts.  Labels are closed lists: no id, no tenant."""

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)

VERDICTS = Counter(
    "rampmeter_streams_decisions_total", "Decisions on requests.", ("verdict", "reason", "priority", "length")
)
CORRECTED = Counter("rampmeter_streams_corrected_total", "Claims of producers that admission corrected.", ("claim",))
DEAD_LETTERS = Counter("rampmeter_streams_dead_letters_total", "Records that could not be read.", ("reason",))
PROMOTED = Counter("rampmeter_streams_promotions_total", "Copies put into the aged tier.", ("pool",))
SETTLED = Counter("rampmeter_streams_settlements_total", "Usage records by what they did.", ("result",))
ADMITTED_UNITS = Counter("rampmeter_streams_admitted_units_total", "Cost units admitted.", ("pool",))
SPENT_UNITS = Counter("rampmeter_streams_spent_units_total", "Cost units really used.", ("pool",))
BATCH_EVENTS = Histogram(
    "rampmeter_streams_batch_events", "Records per micro-batch.", ("agent",), buckets=(1, 2, 5, 10, 20, 50, 100, 200)
)
BATCH_SECONDS = Histogram(
    "rampmeter_streams_batch_seconds",
    "From reading a micro-batch to its acknowledgement.",
    ("agent",),
    buckets=_SECONDS,
)
SPEND_ROWS = Gauge("rampmeter_streams_spend_rows", "Rows of the spend table, all windows together.")
_AVAILABLE = {
    part: Gauge(f"rampmeter_streams_{part}_available", f"1 while {part} answers, 0 while work waits for it.")
    for part in ("redis", "kafka")
}
for _gauge in _AVAILABLE.values():
    _gauge.set(1)
_available = dict.fromkeys(_AVAILABLE, True)


def note(part: str, *, available: bool) -> bool:
    """Note the state of `redis` or `kafka`; True when it changed."""
    changed = _available[part] != available
    _available[part] = available
    _AVAILABLE[part].set(1 if available else 0)
    return changed


def missing() -> str | None:
    """The part that last did not answer, if any."""
    return next((part for part, available in _available.items() if not available), None)
