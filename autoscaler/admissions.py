"""What waits before the lanes, by the decisions that admission logs.

While a pool is saturated admission lets only some seconds of work onto its lanes and keeps the rest in memory or in a
delay topic.  Only what waits for room counts: more replicas do not help what waits for its budget.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from autoscaler.following import Follower, Source
from topics import codec
from topics.clock import Clock
from topics.outcomes import Reason
from topics.records import Length, Tier
from topics.settings import Settings

LOOK_BACK_S = 60.0
"""How old decisions are read at the start."""
FORGET_S = 900.0
"""Who waits and was not heard of for this long has an end that this process did not see."""
MAX_WAITING = 200_000
_TIERS, _LENGTHS = tuple(Tier), tuple(Length)
_WAITS = ("hold", "defer")


class _Inputs(msgspec.Struct):
    pool: str = ""
    priority: str = ""
    length: str = ""
    cost_units: float = 0.0


class _Entry(msgspec.Struct):
    """Of a decision, what is wanted here: the rest is passed over unread, since there is one for every request."""

    id: str
    stage: str
    verdict: str
    reason: str
    inputs: _Inputs
    shadow: str | None = None


_DECODER = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True, slots=True)
class Before:
    """A pool's work that is not on its lanes."""

    held_units: tuple[float, ...] = (0.0,) * len(_TIERS)
    """What waits for room, by tier."""
    refused_units: float = 0.0
    """What was refused for want of room, since the first reading."""
    held_requests: Mapping[tuple[Tier, Length], int] = field(default_factory=dict)
    """How many wait for room; a class that is not named has none."""


@dataclass(slots=True)
class Waiting:
    """Who waits for room.  Invariant: at most `MAX_WAITING` ids.  Written only by its reader."""

    held: dict[str, tuple[_Inputs, float]] = field(default_factory=dict)
    """What it is, and when it was last heard of, the longest ago first."""
    refused_units: dict[str, float] = field(default_factory=dict)

    def take(self, value: bytes, now_s: float) -> None:
        """Take a record in; one that is not a decision of admission says nothing."""
        try:
            entry = _DECODER.decode(value)
        except codec.UNREADABLE:
            return
        if entry.stage != "admission" or entry.shadow is not None:
            return
        self.held.pop(entry.id, None)
        if entry.verdict in _WAITS and entry.reason == Reason.FAIR_SHARE and len(self.held) < MAX_WAITING:
            self.held[entry.id] = (entry.inputs, now_s)
        elif entry.verdict == "reject" and entry.reason == Reason.LANE_WAIT:
            pool = entry.inputs.pool
            self.refused_units[pool] = self.refused_units.get(pool, 0.0) + entry.inputs.cost_units

    def summed_up(self, now_s: float) -> dict[str, Before]:
        """By pool."""
        while self.held and now_s - next(iter(self.held.values()))[1] > FORGET_S:
            del self.held[next(iter(self.held))]
        units: dict[str, list[list[float]]] = {}
        requests: dict[str, Counter[tuple[Tier, Length]]] = {}
        for inputs, _ in self.held.values():
            if inputs.priority in _TIERS:
                by_tier = units.setdefault(inputs.pool, [[] for _ in _TIERS])
                by_tier[_TIERS.index(Tier(inputs.priority))].append(inputs.cost_units)
                if inputs.length in _LENGTHS:
                    requests.setdefault(inputs.pool, Counter())[Tier(inputs.priority), Length(inputs.length)] += 1
        return {
            pool: Before(
                tuple(math.fsum(each) for each in units.get(pool, ())) or Before().held_units,
                self.refused_units.get(pool, 0.0),
                requests.get(pool, {}),
            )
            for pool in units.keys() | self.refused_units.keys()
        }


class AdmissionReader(Follower):
    """Follows the decision log."""

    def __init__(self, settings: Settings, clock: Clock, timeout_s: float) -> None:
        source = Source("decisions", settings.topics.landing_partitions, LOOK_BACK_S, queued_kib=16_384)
        super().__init__(settings, clock, timeout_s, source)
        self._waiting = Waiting()

    def read(self) -> Mapping[str, Before]:
        """Take in what was decided since the last call, and sum up by pool.  Does not wait for more.

        Raises LagUnavailable until the topic was read to its end for the first time, and while it may not be read.
        """
        self.begin()
        now_s = self._clock.mono_s()
        for value in self.values():
            self._waiting.take(value, now_s)
        return self._waiting.summed_up(now_s)
