"""What the autoscaler shows on /metrics.  Every series of a configured pool is there from the start."""

from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from autoscaler.admissions import Before
from autoscaler.backlog import Backlog
from autoscaler.policy.demand import Load
from autoscaler.policy.replicas import Decision, Reason
from autoscaler.target import Unstarted
from topics.records import Length, Tier

_LANE = ("pool", "tier", "length")
_ROUND_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
EXITS = ("drained", "crashed", "killed")
STATES = ("pending", "unschedulable")


class Metrics:
    """Series by pool.  A backlog that could not be read keeps its last values, with `lag_available` 0 beside them."""

    def __init__(self, pools: Iterable[str], registry: CollectorRegistry = REGISTRY) -> None:
        def gauge(name: str, text: str, labels: tuple[str, ...] = ("pool",)) -> Gauge:
            return Gauge(f"rampmeter_autoscaler_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"rampmeter_autoscaler_{name}", text, labels, registry=registry)

        self.desired = gauge("desired_replicas", "Consumers that the pool should have")
        self.ready = gauge("ready_replicas", "Consumers that said lately that they are ready")
        self.ideal = gauge("ideal_replicas", "Unrounded demand of the time when an order serves, before bounds")
        self.lag_available = gauge("lag_available", "1 when the last reading was complete, else 0")
        self.lag_read = gauge("lag_read_timestamp_seconds", "Unix time of the last complete reading")
        self.lag = gauge("lag_records", "Unfinished records, running ones included", _LANE)
        self.backlog = gauge("backlog_units", "Cost of the unfinished records", _LANE)
        self.age = gauge("oldest_age_seconds", "Time since the oldest unfinished record was put on the lane", _LANE)
        self.drain = gauge("backlog_seconds", "Time in which the ready consumers (at least one) serve the backlog")
        self.arrival = gauge(
            "arrival_units_per_second",
            "Cost that comes: put on the lanes, held before them or refused for want of room",
        )
        self.forecast = gauge("forecast_units_per_second", "Mean arrival expected while a new replica starts")
        self.held = gauge("held_units", "Cost that waits for room before the lanes; absent while it cannot be read")
        self.held_requests = gauge(
            "held_requests", "Requests that wait for room before the lanes; absent while that cannot be read", _LANE
        )
        self.running = gauge("running_units", "Cost in the engines, by telemetry; absent without it")
        self.unstarted = gauge(
            "unstarted_pods",
            "Ordered and not running, and of these, those that find no node; absent where that is not known",
            ("pool", "state"),
        )
        self.service = gauge("service_units_per_second", "What one replica serves: nominal until measured")
        self.measured = gauge("service_measured", "1 when the service rate is measured, 0 while it is the nominal one")
        # For an HPA, which believes what it reads: absent while nothing is known.
        self._queue = Gauge("inference_queue_length", "Requests that are not finished", ("pool",), registry=registry)
        self._work = Gauge(
            "inference_drain_seconds",
            "Time in which one consumer would serve the backlog",
            ("pool",),
            registry=registry,
        )
        self.decisions = counter("decisions_total", "Rounds by their reason", "pool", "reason")
        self.exits = counter("consumer_exits_total", "Children that ended", "pool", "how")
        self.unsent = counter("decision_records_unsent_total", "Decision records that the broker did not take")
        self.rounds = Histogram(
            "rampmeter_autoscaler_round_seconds", "Time of one round", buckets=_ROUND_BUCKETS_S, registry=registry
        )
        for pool in pools:
            self._start_at_zero(pool)

    def show_backlog(self, backlog: Backlog, read_s: float) -> None:
        """Show a complete reading."""
        self.lag_available.labels(backlog.pool).set(1)
        self.lag_read.labels(backlog.pool).set(read_s)
        for lane in backlog.lanes:
            labels = (backlog.pool, lane.tier, lane.length)
            self.lag.labels(*labels).set(lane.lag_records)
            self.backlog.labels(*labels).set(lane.cost_units)
            self.age.labels(*labels).set(lane.oldest_age_s)

    def show_load(self, pool: str, load: Load, backlog_units: float, *, is_measured: bool) -> None:
        """Show what the decision is made from."""
        ready = load.ready or 0
        self.ready.labels(pool).set(ready)
        self.arrival.labels(pool).set(load.arrival_units_per_s)
        self.forecast.labels(pool).set(load.coming_units_per_s)
        _show(self.running, load.running_units, pool)
        _show(self.held, load.held_units, pool)
        self.service.labels(pool).set(load.replica_units_per_s)
        self.measured.labels(pool).set(is_measured)
        self.drain.labels(pool).set(backlog_units / (max(1, ready) * load.replica_units_per_s))
        self._queue.labels(pool).set(load.lag_records)
        self._work.labels(pool).set(backlog_units / load.replica_units_per_s)

    def show_held(self, pool: str, before: Before | None) -> None:
        """Show how many wait before the lanes; none of them is in the aged tier."""
        for tier in (Tier.HIGH, Tier.MEDIUM, Tier.LOW):
            for length in Length:
                held = None if before is None else before.held_requests.get((tier, length), 0)
                _show(self.held_requests, held, pool, tier, length)

    def show_unstarted(self, pool: str, unstarted: Unstarted | None) -> None:
        """Show what of the count does not run."""
        for state in STATES:
            _show(self.unstarted, None if unstarted is None else getattr(unstarted, state), pool, state)

    def show_blindness(self, pool: str) -> None:
        """The last reading failed."""
        self.lag_available.labels(pool).set(0)
        for gauge in (self._queue, self._work):
            _show(gauge, None, pool)

    def show_decision(self, pool: str, decision: Decision) -> None:
        """Count a decision and show its outcome."""
        self.desired.labels(pool).set(decision.replicas)
        self.decisions.labels(pool, decision.reason).inc()
        if decision.demand is not None:
            self.ideal.labels(pool).set(decision.demand.soon)

    def _start_at_zero(self, pool: str) -> None:
        by_pool = (self.desired, self.ready, self.ideal, self.lag_available, self.drain, self.arrival, self.forecast)
        for gauge in (*by_pool, self.service, self.measured):
            gauge.labels(pool)
        for gauge in (self.lag, self.backlog, self.age):
            for tier in Tier:
                for length in Length:
                    gauge.labels(pool, tier, length)
        for reason in Reason:
            self.decisions.labels(pool, reason)
        for how in EXITS:
            self.exits.labels(pool, how)


def _show(gauge: Gauge, value: float | None, *labels: str) -> None:
    """What is unknown has no series."""
    if value is None:
        gauge.remove(*labels)
    else:
        gauge.labels(*labels).set(value)
