"""Settings of the streams workers: section `streams`, variables RAMPMETER_STREAMS__X."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from topics.records import Priority
from topics.settings import Section, Settings


class Bucket(Section):
    """A token bucket in cost units: what flows in a second, and how much of it may be saved up for a burst."""

    refill_units_per_s: PositiveFloat
    burst_s: PositiveFloat = 60.0
    """Too small: a burst is deferred that the fleet could take.  Too large: a loud tenant fills the lanes."""

    @property
    def cap_units(self) -> float:
        """Largest level; no single request may cost more."""
        return self.refill_units_per_s * self.burst_s


class Streams(Section):
    """How requests are admitted, ordered and promoted."""

    policy: Literal["ours", "fifo"] = "ours"
    """`fifo` puts every request of a pool on one lane, in order of arrival: the baseline of benchmarks."""
    batch_events: PositiveInt = 200
    """Too small: a Redis call and a broker wait for few.  Too large: the first of a batch waits for the last."""
    buffer_events: PositiveInt = 1000
    """Records fetched ahead per topic.  Too large: memory, and priority is decided on a stale prefetch."""
    global_budget: Bucket = Bucket(refill_units_per_s=50_000)
    pool_budget: Bucket = Bucket(refill_units_per_s=50_000)
    tenant_budget: Bucket = Bucket(refill_units_per_s=10_000)
    tenant_budgets: dict[str, Bucket] = {}
    """Budgets of single tenants, by name; the others get `tenant_budget`."""
    max_deferral_s: PositiveFloat = 30.0
    """How long a request without a deadline may wait for budget before it is rejected with `retry_after_s`."""
    tenant_max_priority: dict[str, Priority] = {}
    user_tier_max_priority: dict[str, Priority] = {"anonymous": Priority.LOW}
    source_max_priority: dict[str, Priority] = {"staging": Priority.MEDIUM, "background": Priority.LOW}
    """Highest class that an attribute allows; a producer's own claim never exceeds it."""
    long_max_tokens: PositiveInt = 256
    """A request that declares more output than this is long."""
    long_cost_quantile: float = Field(0.7, gt=0, lt=1)
    """A request whose predicted cost lies above this quantile of its pool's recent requests is long."""
    long_cost_units: PositiveFloat = 200.0
    """The threshold until enough requests of a pool were seen."""
    aged_after_s: PositiveFloat = 30.0
    """Age at which waiting work is copied to the aged tier.  Too small: overload turns into oldest-first."""
    aged_backlog_records: PositiveInt = 256
    """No more is promoted while this many aged copies wait, so that promotion cannot swallow the lanes."""
    promote_every_s: PositiveFloat = 0.5
    telemetry_stale_s: PositiveFloat = 5.0
    """Telemetry older than this says nothing: placement then spreads evenly."""
    session_timeout_s: PositiveFloat = 10.0
    """Silence after which a worker's partitions go to others.  Too small: a busy moment costs a rebalance."""
    live_after_s: PositiveFloat = 60.0
    """/livez complains when an unfinished batch is older than this."""
    spend_window_s: PositiveFloat = 60.0
    spend_kept_s: PositiveFloat = 3600.0


class StreamsSettings(Settings):
    """All that a streams worker needs."""

    streams: Streams = Streams()
