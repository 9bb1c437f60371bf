"""The consumers as lines of a table, those in trouble first.  Pure; what a consumer does not tell is None, never 0."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from rampmeter.draining import is_live
from topics.telemetry import Telemetry


class State(StrEnum):
    """How a consumer is; the worst first."""

    SILENT = "silent"
    CLOSED = "closed"
    DRAINING = "draining"
    READY = "ready"


class ConsumerLine(msgspec.Struct, frozen=True):
    """A consumer and its GPU, by its last report."""

    consumer: str
    pool: str
    state: State
    why: str | None
    """Of one that takes nothing in."""
    silent_s: float
    role: str | None
    gpu_type: str | None
    partitions: int
    running: int
    queued_units: float
    units_per_s: float | None
    ttft_s: float | None
    busy_ratio: float | None
    memory_ratio: float | None
    kv_ratio: float | None
    """Of the KV cache that is in use."""
    temperature_c: float | None


def lines_of(reports: Iterable[Telemetry], now_s: float) -> list[ConsumerLine]:
    """Every consumer that is not gone."""
    order = list(State)
    found = [_line(told, now_s) for told in reports]
    return sorted(found, key=lambda line: (order.index(line.state), line.pool, line.consumer))


def served_by(reports: Iterable[Telemetry], pool: str, now_s: float) -> tuple[int, float | None]:
    """How many consumers of a pool take work, and what they serve in a second.

    Those that have not measured it yet count as the mean of the others; unknown while nobody has.
    """
    serving = [told for told in reports if told.pool == pool and is_live(told, now_s) and told.takes_work]
    known = [told.capacity_units_per_s for told in serving if told.capacity_units_per_s is not None]
    return len(serving), sum(known) / len(known) * len(serving) if known else None


def _line(told: Telemetry, now_s: float) -> ConsumerLine:
    kv_ratio = None
    if told.free_kv_tokens is not None and told.total_kv_tokens:
        kv_ratio = 1 - told.free_kv_tokens / told.total_kv_tokens
    return ConsumerLine(
        consumer=told.consumer,
        pool=told.pool,
        state=_state(told, now_s),
        why=told.intake,
        silent_s=max(0.0, now_s - told.at_s),
        role=told.role,
        gpu_type=told.gpu_type,
        partitions=sum(map(len, told.lanes.values())),
        running=told.inflight_requests,
        queued_units=told.queued_units,
        units_per_s=told.capacity_units_per_s,
        ttft_s=told.ttft_ewma_s,
        busy_ratio=told.gpu_busy_ratio,
        memory_ratio=told.gpu_memory_used_ratio,
        kv_ratio=kv_ratio,
        temperature_c=told.gpu_temperature_c,
    )


def _state(told: Telemetry, now_s: float) -> State:
    if not is_live(told, now_s):
        return State.SILENT
    if told.state == "draining":
        return State.DRAINING
    return State.READY if told.takes_work else State.CLOSED
