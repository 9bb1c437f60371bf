"""What a streams worker counts.  Labels are closed lists or few names: no id, no tenant but the largest."""

from collections.abc import Iterator, Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)

VERDICTS = Counter(
    "rampmeter_streams_decisions_total", "Decisions on requests.", ("verdict", "reason", "priority", "length")
)
RECEIVED = Counter(
    "rampmeter_streams_received_total", "Landing records read, by what they claim to be.", ("priority", "length")
)
BY_INTERFACE = Counter(
    "rampmeter_streams_interface_requests_total", "Landing records read, by the way that they came.", ("interface",)
)
CORRECTED = Counter("rampmeter_streams_corrected_total", "Claims of producers that admission corrected.", ("claim",))
DEAD_LETTERS = Counter("rampmeter_streams_dead_letters_total", "Records that could not be read.", ("reason",))
PROMOTED = Counter("rampmeter_streams_promotions_total", "Copies put into the aged tier.", ("pool",))
UNPROMOTED = Counter(
    "rampmeter_streams_promotions_skipped_total",
    "Looks at late work that led to no copy; the same work is looked at again.",
    ("pool", "reason"),
)
PLACEMENTS = Counter("rampmeter_streams_placements_total", "Partitions chosen, by what was known.", ("case",))
SETTLED = Counter("rampmeter_streams_settlements_total", "Usage records by what they did.", ("result",))
ADMITTED_UNITS = Counter("rampmeter_streams_admitted_units_total", "Cost units admitted.", ("pool",))
SPENT_UNITS = Counter("rampmeter_streams_spent_units_total", "Cost units really used.", ("pool",))
KV_TOKEN_S = Counter("rampmeter_streams_kv_token_seconds_total", "KV memory really used, times its time.", ("pool",))
BATCH_EVENTS = Histogram(
    "rampmeter_streams_batch_events", "Records per micro-batch.", ("agent",), buckets=(1, 2, 5, 10, 20, 50, 100, 200)
)
BATCH_SECONDS = Histogram(
    "rampmeter_streams_batch_seconds",
    "From reading a micro-batch until all that came of it is with the broker or waits in memory.",
    ("agent",),
    buckets=_SECONDS,
)
DEGRADED = Gauge("rampmeter_streams_redis_degraded", "1 while admission does without Redis, else 0.")
DEGRADED_DECISIONS = Counter(
    "rampmeter_streams_degraded_decisions_total",
    "Decisions that were made without Redis, by the mode of the class.",
    ("mode", "verdict"),
)
OPEN_UNITS = Gauge(
    "rampmeter_streams_open_units", "Cost admitted and not settled, as the last decision saw it.", ("pool",)
)
LEDGER_DRIFT = Gauge(
    "rampmeter_streams_ledger_drift_units",
    "Cost that counts as open beyond what the open requests hold, by the worker that leads; absent where nobody knows.",
    ("pool",),
)
BUDGET_LEVEL = Gauge(
    "rampmeter_streams_budget_level_units",
    "What is in the bucket of a budget, as the last call of this worker left it; below zero is debt.",
    ("level", "name"),
)
MAX_WAIT = Gauge(
    "rampmeter_streams_max_wait_seconds", "How long a request of the class may wait, by the settings.", ("priority",)
)
REBALANCES = Counter("rampmeter_streams_rebalances_total", "Rebalances that this worker was part of.")
UNCOMMITTED = Gauge(
    "rampmeter_streams_uncommitted_seconds",
    "Longest time for which a partition with records in work has stayed at one commit.",
)
HELD = Gauge("rampmeter_streams_held_requests", "Requests that wait in this worker's memory.")
HELD_UNITS = Gauge("rampmeter_streams_held_cost_units", "Cost of the requests that wait in this worker's memory.")
CONTROL_ORDERS = Counter(
    "rampmeter_streams_control_orders_total",
    "Records of the control topic by what they did; `applied` counts once per worker.",
    ("action", "result"),
)
PAUSED = Gauge("rampmeter_streams_paused", "Tenants, pools and classes that are paused.", ("kind",))
BUDGETS_LOST = Gauge("rampmeter_streams_budgets_lost", "1 while Redis answers but has lost the balances, else 0.")
REBUILDS = Counter(
    "rampmeter_streams_rebuilds_total", "Rebuilds of budgets that Redis had lost, by their end.", ("result",)
)
RECALLED = Counter(
    "rampmeter_streams_recalled_total",
    "Records that Redis no longer knew and the decision log did, by what had become of them.",
    ("result",),
)
_ERROR_RATIOS = (0.05, 0.1, 0.2, 0.5, 0.8, 0.95, 1.05, 1.25, 2, 5, 10)
OUTPUT_ERROR = Histogram(
    "rampmeter_streams_output_error_ratio",
    "Generated over expected output tokens of completed requests.",
    ("length",),
    buckets=_ERROR_RATIOS,
)
COST_ERROR = Histogram(
    "rampmeter_streams_cost_error_ratio",
    "Real over reserved cost of completed requests.",
    ("length",),
    buckets=_ERROR_RATIOS,
)
COEFFICIENT = Gauge("rampmeter_streams_coefficient", "The coefficient by which a model is priced.", ("model",))
ESTIMATES = Gauge("rampmeter_streams_estimates", "Kinds of requests of which something is known.")
JAIN = Gauge(
    "rampmeter_streams_fairness_jain",
    "Jain's index of served cost over entitlement of the tenants of this worker, in its last whole spend window.",
    ("pool",),
)
TENANT_UNITS = Gauge(
    "rampmeter_streams_tenant_window_units",
    "Cost served in the last whole spend window, of the tenants of this worker with the most; `(other)` is the rest.",
    ("pool", "tenant"),
)
IDENTITY_REFUSED = Counter(
    "rampmeter_streams_identity_refused_total", "Records whose tenant or class is not proven.", ("why",)
)
SPEND_ROWS = Gauge("rampmeter_streams_spend_rows", "Rows of the spend table, all windows together.")
FORGOTTEN = Counter(
    "rampmeter_streams_forgotten_total", "Requests that a shadow lost sight of, since it followed too many.", ("what",)
)
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


def show_levels(levels: Mapping[str, float]) -> None:
    """Show what is in the budgets of these bucket names (`level:name`); tenants have too many to be shown."""
    for bucket, units in levels.items():
        level, _, name = bucket.partition(":")
        if level != "tenant":
            BUDGET_LEVEL.labels(level, name).set(units)


def show_tenants(units: Mapping[str, Mapping[str, float]]) -> None:
    """Show cost by pool and tenant in place of what was shown."""
    TENANT_UNITS.clear()
    for pool, tenants in units.items():
        for tenant, served in tenants.items():
            TENANT_UNITS.labels(pool, tenant).set(served)


def registry(shadow: str | None) -> CollectorRegistry:
    """What a worker shows at /metrics."""
    return REGISTRY if shadow is None else ShadowRegistry()


class ShadowRegistry(CollectorRegistry):
    """The same series under `rampmeter_shadow_`: no sum over the workers that serve must count what nobody was told."""

    def collect(self) -> Iterator[Metric]:
        """See `CollectorRegistry`."""
        for family in REGISTRY.collect():
            family.name = _of_shadow(family.name)
            family.samples = [sample._replace(name=_of_shadow(sample.name)) for sample in family.samples]
            yield family


def _of_shadow(name: str) -> str:
    return name.replace("rampmeter_streams_", "rampmeter_shadow_", 1)
