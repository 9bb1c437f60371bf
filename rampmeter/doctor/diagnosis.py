"""Which of the four patterns of a slow pipeline a pool shows.  Pure; what is not known is said to be unknown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

import msgspec

from rampmeter.draining import STALE_S, is_live
from topics.telemetry import Telemetry

FORGOTTEN_S = 600.0
REFUSED_RATIO = 0.05
LONG_AMONG_SHORT_RATIO = 0.05
LEAST_RUNS = 5
"""Fewer attempts say nothing about a class."""
FULL_RATIO = 0.9
IDLE_RATIO = 0.5
SHORT_WAIT_S = 0.2
FREE_KV_RATIO = 0.1
MEMORY_USED_RATIO = 0.95


class Pattern(StrEnum):
    """Why answers are slow."""

    FLOOD = "flood"
    HELD_UP = "held_up"
    COMPUTE = "compute_bound"
    MEMORY = "memory_bound"


ADVICE = {
    Pattern.FLOOD: "hold the tenant back (`rampmeter limits set tenant`, `rampmeter pause tenant`), or add replicas",
    Pattern.HELD_UP: "start dead consumers again; lower streams.history.long_service_s or the prices' error; narrow"
    " gpu.static_window_*_s",
    Pattern.COMPUTE: "add replicas or faster GPUs, or refuse what is too late (gpu.short_start_s, gpu.long_start_s)",
    Pattern.MEMORY: "lower gpu.window_requests or gpu.long_window_ratio, or use GPUs with more memory",
}


class Judgement(msgspec.Struct, frozen=True):
    """One line: whether a pool shows a pattern (None: unknown), by what one sees it, and what to do."""

    pool: str
    pattern: Pattern
    shows: bool | None
    why: str
    advice: str


@dataclass(slots=True)
class Pool:
    """What is known of a pool, of the last `window_s` seconds."""

    name: str
    window_s: float
    lag_records: int | None = None
    oldest_s: float = 0.0
    reports: dict[str, Telemetry] = field(default_factory=dict)
    """The last of each consumer."""
    asked_units: dict[str, float] = field(default_factory=dict)
    """Cost of what came, by tenant."""
    looked_at: int = 0
    refused: int = 0
    short_runs: int = 0
    short_long_runs: int = 0
    """Of those, attempts that took as long as a long one."""
    short_waits_s: list[float] = field(default_factory=list)
    """From the lane to the engine."""

    def live(self, now_s: float) -> list[Telemetry]:
        """Consumers that tell about themselves."""
        return [told for told in self.reports.values() if is_live(told, now_s)]

    def dead(self, now_s: float) -> list[str]:
        """Consumers that fell silent without taking leave."""
        return sorted(
            told.consumer
            for told in self.reports.values()
            if told.state != "gone" and STALE_S < now_s - told.at_s <= FORGOTTEN_S
        )


def judge(pool: Pool, now_s: float) -> Iterator[Judgement]:
    """One line for each pattern."""
    found = (_flood, _held_up, _compute, _memory)
    for pattern, (shows, why) in zip(Pattern, (rule(pool, now_s) for rule in found), strict=True):
        yield Judgement(pool.name, pattern, shows, why, ADVICE[pattern] if shows else "")


_Seen = tuple[bool | None, str]


def _flood(pool: Pool, now_s: float) -> _Seen:
    asked_per_s = sum(pool.asked_units.values()) / pool.window_s
    if not pool.looked_at:
        return False, "nothing came"
    refused = pool.refused / pool.looked_at
    loudest = max(pool.asked_units, key=lambda tenant: pool.asked_units[tenant], default="nobody")
    part = pool.asked_units.get(loudest, 0.0) / (sum(pool.asked_units.values()) or 1.0)
    serves = total([told.capacity_units_per_s for told in pool.live(now_s)])
    said = (
        f"{asked_per_s:,.0f} units/s are asked for, {part:.0%} by {loudest}; "
        f"{'an unknown rate' if serves is None else f'{serves:,.0f} units/s'} can be served; {refused:.0%} was refused"
    )
    if refused > REFUSED_RATIO or (serves is not None and asked_per_s > serves and pool.lag_records):
        return True, said
    return (None if serves is None and pool.lag_records else False), said


def _held_up(pool: Pool, now_s: float) -> _Seen:
    dead, live = pool.dead(now_s), pool.live(now_s)
    if dead:
        return True, f"{len(dead)} consumers fell silent: {', '.join(dead[:3])}"
    if pool.lag_records and not live:
        return True, f"{pool.lag_records} records wait and no consumer is there"
    if pool.short_runs >= LEAST_RUNS and pool.short_long_runs > LONG_AMONG_SHORT_RATIO * pool.short_runs:
        return True, f"{pool.short_long_runs} of {pool.short_runs} short requests ran as long as a long one"
    fill = [ratio for told in live if (ratio := _fill(told)) is not None]
    wait_s = median(pool.short_waits_s) if len(pool.short_waits_s) >= LEAST_RUNS else 0.0
    if wait_s > SHORT_WAIT_S and fill and max(fill) < IDLE_RATIO:
        return True, f"shorts wait {wait_s:.2f} s on their lane while no engine is more than {max(fill):.0%} full"
    if pool.lag_records is None:
        return None, "what waits is not known"
    return (
        False,
        f"{_consumers(live)} there, and shorts are short" if live else "nothing waits, and no consumer is there",
    )


def _compute(pool: Pool, now_s: float) -> _Seen:
    live = pool.live(now_s)
    fill = [ratio for told in live if (ratio := _fill(told)) is not None]
    if not fill:
        return None, "no consumer tells how full its engine is"
    full = sum(ratio >= FULL_RATIO for ratio in fill)
    said = f"{full} of {len(fill)} engines are full, the oldest work waits for {pool.oldest_s:.1f} s"
    is_short_of_memory = any(_lacks_memory(told) for told in live)
    return bool(full * 2 >= len(fill) and pool.lag_records and not is_short_of_memory), said


def _memory(pool: Pool, now_s: float) -> _Seen:
    live = pool.live(now_s)
    known = [
        told
        for told in live
        if told.free_kv_tokens is not None or told.gpu_memory_used_ratio is not None or told.intake
    ]
    if not known:
        return None, "no consumer tells of its memory"
    lacking = [told for told in known if _lacks_memory(told)]
    if not lacking:
        return False, f"{_consumers(known)} there with memory left"
    first = lacking[0]
    return True, f"{len(lacking)} of {len(known)} consumers lack memory, as {first.consumer}: {_memory_of(first)}"


def _consumers(told: Sequence[Telemetry]) -> str:
    return "1 consumer is" if len(told) == 1 else f"{len(told)} consumers are"


def _fill(told: Telemetry) -> float | None:
    """How full the engine is, by the GPU's own word or by the work inside."""
    if told.gpu_busy_ratio is not None:
        return told.gpu_busy_ratio
    return told.inflight_units / told.capacity_units if told.capacity_units else None


def _lacks_memory(told: Telemetry) -> bool:
    free = free_kv_ratio(told)
    return (
        (free is not None and free < FREE_KV_RATIO)
        or (told.gpu_memory_used_ratio or 0.0) > MEMORY_USED_RATIO
        or "memory" in (told.intake or "")
    )


def _memory_of(told: Telemetry) -> str:
    free, used = free_kv_ratio(told), told.gpu_memory_used_ratio
    said = [] if free is None else [f"{free:.0%} of its KV cache is free"]
    said += [] if used is None else [f"{used:.0%} of its memory is used"]
    said += [] if told.intake is None else [f"its intake is {told.intake}"]
    return ", ".join(said)


def free_kv_ratio(told: Telemetry) -> float | None:
    """Free part of the KV cache."""
    return (
        None if told.free_kv_tokens is None or not told.total_kv_tokens else told.free_kv_tokens / told.total_kv_tokens
    )


def total(values: Sequence[float | None]) -> float | None:
    """The sum, the unknown as the mean of the known; None when none is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) * len(values) if known else None


def patterns(found: Sequence[Judgement]) -> Mapping[Pattern, bool]:
    """Which patterns some pool shows."""
    return {pattern: any(one.shows for one in found if one.pattern is pattern) for pattern in Pattern}
