"""What `rampmeter top` knows at one moment.  None is what is unknown, never zero; the structs are the JSON."""

import msgspec


class Lane(msgspec.Struct, frozen=True):
    """One class of a pool: a tier and a length."""

    pool: str
    tier: str
    length: str
    lag_records: int | None = None
    """Unfinished records, running ones included."""
    cost_units: float | None = None
    drain_s: float | None = None
    """Time in which the pool's ready consumers serve this alone; unknown while their rate is."""
    oldest_age_s: float | None = None
    arrived_per_s: float | None = None
    """Records; unknown until the second reading."""
    finished_per_s: float | None = None


class Pool(msgspec.Struct, frozen=True):
    """A pool's consumers and all its lanes together."""

    pool: str
    ready: int | None = None
    closed: int | None = None
    """Take no work in, as for their temperature."""
    draining: int | None = None
    silent: int | None = None
    """Fell silent without taking leave."""
    lag_records: int | None = None
    cost_units: float | None = None
    drain_s: float | None = None
    oldest_age_s: float | None = None
    arrived_units_per_s: float | None = None
    """Cost that came onto the lanes."""
    capacity_units_per_s: float | None = None
    """What the ready consumers serve while work waits; one that does not know yet counts as their mean."""


class Tenant(msgspec.Struct, frozen=True):
    """What a tenant asked for and used in the last seconds."""

    tenant: str
    requests_per_s: float
    asked_units_per_s: float
    asked_ratio: float
    """Of what all asked for."""
    used_units_per_s: float
    """Of attempts that were settled."""
    refused_ratio: float | None
    """Of its requests; None when there were none."""
    waiting: int
    """Requests that wait before the lanes, for a budget or for room."""


class Consumer(msgspec.Struct, frozen=True):
    """A GPU consumer by its last report."""

    consumer: str
    pool: str
    role: str
    state: str
    """`ready`, `draining`, `gone`, `silent`, or `closed` for one that takes no work in."""
    age_s: float
    """Of the report."""
    lanes: dict[str, list[int]]
    """Owned partitions by topic."""
    partitions: int
    inflight_requests: int
    queued_units: float
    capacity_units_per_s: float | None = None
    kv_used_ratio: float | None = None
    gpu_memory_used_ratio: float | None = None
    gpu_busy_ratio: float | None = None
    gpu_temperature_c: float | None = None
    intake: str | None = None
    """Why it takes no work in."""


class Unread(msgspec.Struct, frozen=True):
    """What could not be read, and why."""

    what: str
    why: str
    last_s: float | None = None
    """When it last could be; None: not since the start."""


class Snapshot(msgspec.Struct, frozen=True):
    """All of it; tenants and consumers are None when they could not be read."""

    at_s: float
    lanes: tuple[Lane, ...]
    pools: tuple[Pool, ...]
    tenants: tuple[Tenant, ...] | None
    consumers: tuple[Consumer, ...] | None
    unread: tuple[Unread, ...] = ()
