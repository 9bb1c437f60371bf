"""What the workers that serve and a shadow said of each request, gathered from decisions and replies.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

import msgspec

from topics.records import Decision, Reply

_WORDS = {"admit": "admitted", "hold": "waits", "defer": "waits"}
_SAME_UNITS = 0.0005
"""Costs in the decision log have three decimals."""


class Grounds(msgspec.Struct, frozen=True):
    """What a decision tells of its request; None is what it does not say, as of one that could not be verified."""

    tenant: str | None = None
    priority: str | None = None
    pool: str | None = None
    length: str | None = None
    cost_units: float | None = None
    coefficient: float | None = None
    arrived_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stance:
    """One side's word on a request."""

    outcome: str
    """`admitted`, `waits`, or the reason of a rejection."""
    at_s: float
    grounds: Grounds

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return self.outcome != "waits"

    @property
    def is_admitted(self) -> bool:
        """Whether it was let onto a lane."""
        return self.outcome == "admitted"

    @property
    def lane(self) -> str | None:
        """Pool, class and length."""
        pool, priority, length = self.grounds.pool, self.grounds.priority, self.grounds.length
        return f"{pool}.{priority}.{length}" if pool and priority and length else None

    @property
    def queued_s(self) -> float | None:
        """From the arrival to the admission; None of what was not admitted."""
        arrived_s = self.grounds.arrived_s
        return max(0.0, self.at_s - arrived_s) if self.is_admitted and arrived_s is not None else None


@dataclass(frozen=True, slots=True)
class Pair:
    """A request on which both have spoken."""

    real: Stance
    shadow: Stance
    used_units: float | None = None
    """What its attempts really cost; None until one was settled."""
    lane_s: float | None = None
    """What it really waited from its admission to an engine; None until it was answered."""

    @property
    def is_final(self) -> bool:
        """Whether both have decided for good."""
        return self.real.is_final and self.shadow.is_final

    @property
    def changes(self) -> list[str]:
        """In what the two differ: outcome, class, lane, price."""
        real, shadow = self.real.grounds, self.shadow.grounds
        pairs: dict[str, tuple[object, object]] = {
            "class": (real.priority, shadow.priority),
            "lane": (self.real.lane, self.shadow.lane),
        }
        found = ["outcome"] if self.real.outcome != self.shadow.outcome else []
        found += [name for name, (one, other) in pairs.items() if None not in (one, other) and one != other]
        is_known = real.cost_units is not None and shadow.cost_units is not None
        if is_known and abs((real.cost_units or 0.0) - (shadow.cost_units or 0.0)) > _SAME_UNITS:
            found.append("price")
        return found

    @property
    def used_at_shadow_price(self) -> float | None:
        """What it really used, at the shadow's coefficient; None of what did not run."""
        real, shadow = self.real.grounds.coefficient, self.shadow.grounds.coefficient
        if self.used_units is None or not real or shadow is None:
            return self.used_units
        return self.used_units * shadow / real

    def lane_estimate_s(self, medians: Mapping[str, float]) -> float | None:
        """What the shadow's request would wait on its lane while lanes are as they were; None when nothing tells.

        On the same lane its own wait, else the median of those on the other.
        """
        lane = self.shadow.lane
        if not self.shadow.is_admitted or lane is None:
            return None
        return self.lane_s if self.lane_s is not None and self.real.lane == lane else medians.get(lane)


@dataclass(slots=True)
class Stances:
    """All requests by id.  Of an id that was decided several times the first final word of each side counts."""

    shadow: str
    real: dict[str, Stance] = field(default_factory=dict)
    shadowed: dict[str, Stance] = field(default_factory=dict)
    used_units: dict[str, float] = field(default_factory=dict)
    lane_s: dict[str, float] = field(default_factory=dict)

    def decision(self, decision: Decision) -> None:
        """Take in a decision of either side; those of other shadows, and on anything but requests, say nothing."""
        if decision.shadow is None and decision.stage == "settlement":
            self._settled(decision)
        elif decision.shadow in {None, self.shadow} and decision.stage in {"admission", "verification"}:
            side = self.real if decision.shadow is None else self.shadowed
            last = side.get(decision.id)
            if last is None or not last.is_final:
                side[decision.id] = _stance(decision)

    def reply(self, reply: Reply) -> None:
        """Take in how long an answered request waited on lanes."""
        waits = reply.waits
        if waits is not None and waits.lane_s is not None and not reply.repeat:
            self.lane_s[reply.id] = (waits.admitted_s or 0.0) + waits.lane_s

    def pairs(self) -> dict[str, Pair]:
        """What both have spoken on, by id."""
        return {
            key: Pair(real, self.shadowed[key], self.used_units.get(key), self.lane_s.get(key))
            for key, real in self.real.items()
            if key in self.shadowed
        }

    def lane_medians(self) -> dict[str, float]:
        """Median of what requests really waited, by lane; lanes on which none was seen are absent."""
        waited: dict[str, list[float]] = {}
        for key, stance in self.real.items():
            if key in self.lane_s and stance.lane is not None:
                waited.setdefault(stance.lane, []).append(self.lane_s[key])
        return {lane: median(found) for lane, found in waited.items()}

    def _settled(self, decision: Decision) -> None:
        units = decision.inputs.get("real_units")
        if decision.verdict != "repeat" and isinstance(units, int | float):
            self.used_units[decision.id] = self.used_units.get(decision.id, 0.0) + units


def _stance(decision: Decision) -> Stance:
    try:
        grounds = msgspec.convert(decision.inputs, Grounds)
    except msgspec.ValidationError:  # a foreign record's
        grounds = Grounds()
    return Stance(_WORDS.get(decision.verdict, decision.reason), decision.at_s, grounds)
