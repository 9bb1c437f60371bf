"""What `reserve.lua` keeps in Redis, in memory: who has what open and waiting on which lane, and the budgets.

The decision is `streams.policy.admission`; here are only its facts.  Left out: turns on a shared budget that is spent,
and warming up.
"""

from collections.abc import Callable

import msgspec

from rampmeter.simulation.jobs import Asked
from streams.policy.admission import LEVELS, Facts
from streams.policy.degrade import Limit, Local
from streams.policy.sharing import Share
from topics.records import Work


class _Sums(msgspec.Struct):
    """Open: admitted and not settled.  Waiting: before the lane.  Busy: with any of these."""

    weight: float
    open_units: float = 0.0
    open_requests: int = 0
    waiting_units: float = 0.0
    requests: int = 0
    """Both."""

    def open(self, units: float, count: int) -> float:
        """Open one more (1) or less (-1); tell by how much that changes the weight of those that are busy."""
        self.requests += count
        self.open_requests += count
        # Sums of fractions may end beside zero.
        self.open_units = self.open_units + units if self.open_requests else 0.0
        return count * self.weight if self.requests == (count > 0) else 0.0

    def wait(self, units: float, count: int) -> float:
        """The same of what waits."""
        self.requests += count
        waiting_requests = self.requests - self.open_requests
        self.waiting_units = self.waiting_units + units if waiting_requests else 0.0
        return count * self.weight if self.requests == (count > 0) else 0.0


class _Lane(_Sums):
    """Sums over its tenants."""

    busy_weight: float = 0.0
    """Of its busy tenants."""
    others: list[tuple["_Lane", float]] = []
    """The other lanes, and their weights over its own."""


class _Flow(_Sums, kw_only=True):
    """A tenant's part of a lane."""

    lane: _Lane


LimitOf = Callable[[str, str], Limit | None]
"""The budget of a level's name; None for one that never binds."""


def unbound(_level: str, _name: str) -> None:
    """No budget."""


class _Flows(dict[tuple[str, str], _Flow]):
    """By lane and tenant, whose weight is the refill of its budget; made when they are first asked for."""

    def __init__(self, lanes: dict[str, _Lane], limit_of: LimitOf) -> None:
        super().__init__()
        self._lanes, self._limit_of = lanes, limit_of

    def __missing__(self, flow: tuple[str, str]) -> _Flow:
        lane, tenant = flow
        limit = self._limit_of("tenant", tenant)
        self[flow] = _Flow(1.0 if limit is None else limit.refill_units_per_s, lane=self._lanes[lane])
        return self[flow]


class Ledger:
    """One pool's.  Invariant: sums over lanes are those over their tenants."""

    def __init__(self, lane_weights: dict[str, float], half_life_s: float, limit_of: LimitOf = unbound) -> None:
        """`half_life_s` is that of what a tenant was served."""
        self._half_life_s, self._limit_of = half_life_s, limit_of
        self._lanes = {lane: _Lane(weight) for lane, weight in lane_weights.items()}
        for own in self._lanes.values():
            own.others = [(lane, lane.weight / own.weight) for lane in self._lanes.values() if lane is not own]
        self._flows = _Flows(self._lanes, limit_of)
        self._buckets: dict[tuple[str, str], Local] = {}
        self._open_units = self._busy_weight = 0.0
        self._attained: dict[str, tuple[float, float]] = {}

    def facts(self, asked: Asked, now_s: float, *, is_back: bool = False) -> Facts:
        """What is known of a request before it is decided; one that is back waits behind nobody of its own flow."""
        mine, work = self._flows[asked.flow], asked.work
        own = mine.lane
        busy_weight = self._busy_weight if own.requests else self._busy_weight + own.weight
        tenants_weight = own.busy_weight + (0.0 if mine.requests else mine.weight)
        share = Share(
            self._open_units, own.open_units, own.open_requests, own.weight / busy_weight,
            mine.open_units, mine.waiting_units, mine.weight / tenants_weight, own.waiting_units,
            tuple([(lane.open_units + lane.waiting_units, ratio) for lane, ratio in own.others if lane.requests]),
        )  # fmt: skip
        if self._limit_of is unbound:
            return Facts(share)
        worst, worst_s = "", 0.0
        for (level, _), bucket in self._budgets(work, now_s):
            if bucket.wait_s(work.price.cost_units) is None:
                return Facts(share, level, never_cap_units=bucket.limit.cap_units)
            before_units = 0.0 if is_back else mine.waiting_units
            wait_s = bucket.spend(before_units).wait_s(work.price.cost_units) or 0.0
            if wait_s > worst_s:
                worst, worst_s = level, wait_s
        return Facts(share, worst, worst_s)

    def admit(self, asked: Asked, now_s: float) -> None:
        """It goes to its lane: reserved and open."""
        work, (_, tenant) = asked.work, asked.flow
        units = work.price.cost_units
        weight = self._open(asked.flow, units, 1)
        self._attained[tenant] = self.attained_units(tenant, now_s) + units / weight, now_s
        for name, bucket in self._budgets(work, now_s):
            self._buckets[name] = bucket.spend(units)

    def attained_units(self, tenant: str, now_s: float) -> float:
        """What a tenant was served lately over its weight."""
        units, as_of_s = self._attained.get(tenant, (0.0, now_s))
        return units * float(0.5 ** ((now_s - as_of_s) / self._half_life_s))

    def settle(self, asked: Asked, now_s: float, real_units: float | None = None) -> None:
        """It ended; what it did not use of its reservation flows back.  Without `real_units` it used all."""
        work = asked.work
        self._open(asked.flow, -work.price.cost_units, -1)
        if real_units is not None:
            back_units = work.price.cost_units - real_units
            for name, bucket in self._budgets(work, now_s):
                given = bucket.spend(-back_units)
                self._buckets[name] = given.at(now_s, given.limit)

    def wait(self, asked: Asked, *, is_over: bool) -> None:
        """It waits before its lane, or that is over."""
        mine, units, count = self._flows[asked.flow], asked.work.price.cost_units, 1
        if is_over:
            units, count = -units, -1
        mine.lane.busy_weight += mine.wait(units, count)
        self._busy_weight += mine.lane.wait(units, count)

    def _open(self, flow: tuple[str, str], units: float, count: int) -> float:
        """Open one more, or less; the tenant's weight."""
        mine = self._flows[flow]
        self._open_units += units
        mine.lane.busy_weight += mine.open(units, count)
        self._busy_weight += mine.lane.open(units, count)
        return mine.weight

    def _budgets(self, work: Work, now_s: float) -> list[tuple[tuple[str, str], Local]]:
        """Those that bind the request, as they are now."""
        if self._limit_of is unbound:
            return []
        owners = ("all", work.price.pool, work.request.tenant, work.request.priority.value)
        found = []
        for name in zip(LEVELS, owners, strict=True):
            limit = self._limit_of(*name)
            if limit is not None:
                known = self._buckets.get(name) or Local(0.0, 0.0, limit)
                self._buckets[name] = known.at(now_s, limit)
                found.append((name, self._buckets[name]))
        return found
