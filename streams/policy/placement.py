"""Which partition of a lane: the better of two owners drawn by chance.  Unknown load spreads evenly.  Pure.

Two draws instead of the best of all: several workers that see the same report would all send to the same best one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from topics.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Rules:
    """Weights of the score's parts, and where health ends."""

    memory_weight: float
    queue_weight: float
    latency_weight: float
    stale_s: float
    """Telemetry older than this is as good as none."""
    max_memory_used_ratio: float
    max_temperature_c: float
    stalled_s: float


class Owner(msgspec.Struct, frozen=True):
    """A consumer as its last telemetry shows it; None is unknown."""

    consumer: str
    partitions: tuple[int, ...]
    """Those of the lane that it owns."""
    at_s: float
    moved_s: float
    """By `last_moved_s`."""
    ready: bool = True
    load_units: float = 0.0
    """Cost in its queue and in its engine."""
    units_per_s: float | None = None
    free_memory_ratio: float | None = None
    latency_s: float | None = None
    memory_used_ratio: float | None = None
    temperature_c: float | None = None

    def is_healthy(self, rules: Rules) -> bool:
        """Ready, not too full, not too hot, not stalled; what is unknown is no illness."""
        too_full = self.memory_used_ratio is not None and self.memory_used_ratio > rules.max_memory_used_ratio
        too_hot = self.temperature_c is not None and self.temperature_c > rules.max_temperature_c
        return self.ready and not too_full and not too_hot and self.at_s - self.moved_s <= rules.stalled_s


class Case(StrEnum):
    """How a partition was found."""

    CHOSEN = "chosen"
    ONLY_ONE = "only_one"
    UNKNOWN = "unknown"
    STALE = "stale"
    NONE_HEALTHY = "none_healthy"


class Choice(msgspec.Struct, frozen=True):
    """The owners that were drawn, with what was placed on each since its report, and which of them is the better."""

    drawn: tuple[Owner, ...]
    number: int

    @property
    def owner(self) -> Owner:
        """The better one."""
        return self.drawn[self.number]


class Spot(msgspec.Struct, frozen=True):
    """Where work goes and how that was found; without a choice it was its turn."""

    partition: int
    case: Case
    choice: Choice | None = None


class Candidates(msgspec.Struct, frozen=True):
    """The owners that may get work.  Without any, work is spread evenly over all partitions."""

    case: Case
    owners: tuple[Owner, ...] = ()
    until_s: float = float("inf")
    """When the first of the fresh reports is stale."""


def owner(telemetry: Telemetry, partitions: Collection[int], moved_s: float) -> Owner:
    """A consumer's part in a lane.  Free memory is that of the KV cache; if unknown, the GPU's."""
    t, free_ratio = telemetry, None
    if t.free_kv_tokens is not None and t.total_kv_tokens:
        free_ratio = t.free_kv_tokens / t.total_kv_tokens
    elif t.gpu_memory_used_ratio is not None:
        free_ratio = 1 - t.gpu_memory_used_ratio
    return Owner(
        consumer=t.consumer,
        partitions=tuple(sorted(partitions)),
        at_s=t.at_s,
        moved_s=moved_s,
        ready=t.takes_work,
        load_units=t.queued_units + t.inflight_units,
        units_per_s=t.capacity_units_per_s or None,
        free_memory_ratio=free_ratio,
        latency_s=t.latency_ewma_s,
        memory_used_ratio=t.gpu_memory_used_ratio,
        temperature_c=t.gpu_temperature_c,
    )


def last_moved_s(moved_s: float, before: Telemetry | None, now: Telemetry) -> float:
    """When a consumer last made progress: it finished something, or nothing waited behind its engine.

    A single long request in an engine with free slots finishes nothing for minutes and is no stall.
    """
    waits = now.inflight_requests > 0 and now.queued_units > 0
    stands = before is not None and before.finished_units_total == now.finished_units_total
    return moved_s if waits and stands else now.at_s


def candidates(owners: Collection[Owner], now_s: float, rules: Rules) -> Candidates:
    """Who may get work, of all known owners of a lane."""
    fresh = [o for o in owners if now_s - o.at_s <= rules.stale_s]
    if not fresh:
        return Candidates(Case.STALE if owners else Case.UNKNOWN)
    until_s = min([o.at_s for o in fresh]) + rules.stale_s
    healthy = tuple([o for o in fresh if o.partitions and o.is_healthy(rules)])
    if not healthy:
        return Candidates(Case.NONE_HEALTHY, (), until_s)
    return Candidates(Case.ONLY_ONE if len(healthy) == 1 else Case.CHOSEN, healthy, until_s)


def choose(
    among: Sequence[Owner], placed_units: Mapping[str, float], rules: Rules, draws: tuple[float, float]
) -> Choice:
    """The better of two different owners.

    `placed_units`: what each got since its report; it counts as its load, so that nobody runs after one report.
    `draws`: two numbers from 0 to before 1.
    """
    count = len(among)
    first = int(draws[0] * count)
    if count == 1:
        return Choice((_loaded(among[first], placed_units),), 0)
    second = int(draws[1] * (count - 1))
    second += second >= first
    drawn = _loaded(among[first], placed_units), _loaded(among[second], placed_units)
    return Choice(drawn, better(drawn, rules))


def better(drawn: Sequence[Owner], rules: Rules) -> int:
    """Which of one or two owners is the better; equals fall to the first."""
    if len(drawn) == 1:
        return 0
    one, other = scores(drawn[0], drawn[1], rules)
    return int(other > one)


def _loaded(known: Owner, placed_units: Mapping[str, float]) -> Owner:
    placed = placed_units.get(known.consumer, 0.0)
    return msgspec.structs.replace(known, load_units=known.load_units + placed) if placed else known


def scores(one: Owner, other: Owner, rules: Rules) -> tuple[float, float]:
    """Weighted free memory + (1 - time to drain) + (1 - latency), each over the larger of the two.

    Over the larger, so that ratios count and not ranks.  An unknown part is the other's: neutral.
    The queue is in seconds at each owner's rate, so a slow one gets less.
    """
    rate, other_rate = _filled(one.units_per_s, other.units_per_s, 1.0)
    queue, other_queue = _relative(one.load_units / rate, other.load_units / other_rate)
    memory, other_memory = _relative(*_filled(one.free_memory_ratio, other.free_memory_ratio, 0.0))
    latency, other_latency = _relative(*_filled(one.latency_s, other.latency_s, 0.0))
    by_memory, by_queue, by_latency = rules.memory_weight, rules.queue_weight, rules.latency_weight
    return (
        by_memory * memory + by_queue * (1 - queue) + by_latency * (1 - latency),
        by_memory * other_memory + by_queue * (1 - other_queue) + by_latency * (1 - other_latency),
    )


def _filled(one: float | None, other: float | None, otherwise: float) -> tuple[float, float]:
    """The unknown as the other one; `otherwise` when neither is known."""
    if one is None:
        one = otherwise if other is None else other
    return one, one if other is None else other


def _relative(one: float, other: float) -> tuple[float, float]:
    most = other if other > one else one
    return (one / most, other / most) if most > 0 else (0.0, 0.0)
