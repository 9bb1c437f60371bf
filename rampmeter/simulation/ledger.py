"""What `reserve.lua` keeps in Redis, in memory: who has what open and waiting on which lane, and the budgets.

The decision is `streams.policy.admission`; here are only its facts.  Left out: turns on a shared budget that is spent,
and warming up.
"""

from collections import defaultdict
from collections.abc import Callable

import msgspec

from rampmeter.simulation.jobs import Asked
from streams.policy.admission import LEVELS, Facts
from streams.policy.degrade import Limit, Local
from streams.policy.sharing import Share
from topics.records import Work


class _Flow(msgspec.Struct):
    """Open: admitted and not settled.  Waiting: before the lane."""

    open_units: float = 0.0
    open_requests: int = 0
    waiting_units: float = 0.0
    waiting_requests: int = 0

    @property
    def is_busy(self) -> bool:
        return self.open_requests > 0 or self.waiting_requests > 0

    def add(self, by: "_Flow") -> int:
        """Change it, and tell whether it became busy (1), stopped being so (-1), or neither."""
        was_busy = self.open_requests + self.waiting_requests > 0
        self.open_requests += by.open_requests
        self.waiting_requests += by.waiting_requests
        # Sums of fractions may end beside zero.
        self.open_units = self.open_units + by.open_units if self.open_requests else 0.0
        self.waiting_units = self.waiting_units + by.waiting_units if self.waiting_requests else 0.0
        return (self.open_requests + self.waiting_requests > 0) - was_busy


LimitOf = Callable[[str, str], Limit | None]
"""The budget of a level's name; None for one that never binds."""


def unbound(_level: str, _name: str) -> None:
    """No budget."""


class Ledger:
    """One pool's.  Invariant: sums over lanes are those over their tenants."""

    def __init__(self, lane_weights: dict[str, float], half_life_s: float, limit_of: LimitOf = unbound) -> None:
        """`half_life_s` is that of what a tenant was served; its weight is the refill of its budget."""
        self._weights, self._half_life_s, self._limit_of = lane_weights, half_life_s, limit_of
        self._lanes = {lane: _Flow() for lane in lane_weights}
        self._beside = {
            lane: [(flow, lane_weights[name] / weight) for name, flow in self._lanes.items() if name != lane]
            for lane, weight in lane_weights.items()
        }
        """Of each lane the others, and their weights over its own."""
        self._flows: defaultdict[tuple[str, str], _Flow] = defaultdict(_Flow)
        self._busy_tenants: dict[str, float] = dict.fromkeys(lane_weights, 0.0)
        self._buckets: dict[tuple[str, str], Local] = {}
        self._tenant_weights: dict[str, float] = {}
        self._open_units = self._busy_weight = 0.0
        self._attained: dict[str, tuple[float, float]] = {}

    def facts(self, asked: Asked, now_s: float, *, is_back: bool = False) -> Facts:
        """What is known of a request before it is decided; one that is back waits behind nobody of its own flow."""
        (lane, tenant), work = asked.flow, asked.work
        own, mine = self._lanes[lane], self._flows[asked.flow]
        weight, tenant_weight = self._weights[lane], self._weight_of(tenant)
        busy_weight = self._busy_weight if own.is_busy else self._busy_weight + weight
        tenants_weight = self._busy_tenants[lane] + (0.0 if mine.is_busy else tenant_weight)
        share = Share(
            self._open_units, own.open_units, own.open_requests, weight / busy_weight,
            mine.open_units, mine.waiting_units, tenant_weight / tenants_weight,
            own.waiting_units, self._others(lane),
        )  # fmt: skip
        worst, worst_s = "", 0.0
        for (level, _), bucket in self._budgets(work, now_s):
            if bucket.wait_s(work.price.cost_units) is None:
                return Facts(share, level, never_cap_units=bucket.limit.cap_units)
            before_units = 0.0 if is_back else mine.waiting_units
            wait_s = bucket.spend(before_units).wait_s(work.price.cost_units) or 0.0
            if wait_s > worst_s:
                worst, worst_s = level, wait_s
        return Facts(share, worst, worst_s)

    def _others(self, lane: str) -> tuple[tuple[float, float], ...]:
        beside = self._beside[lane]
        return tuple([(flow.open_units + flow.waiting_units, ratio) for flow, ratio in beside if flow.is_busy])

    def admit(self, asked: Asked, now_s: float) -> None:
        """It goes to its lane: reserved and open."""
        work, (_, tenant) = asked.work, asked.flow
        units = work.price.cost_units
        self._change(asked.flow, _Flow(units, 1))
        self._attained[tenant] = self.attained_units(tenant, now_s) + units / self._weight_of(tenant), now_s
        for name, bucket in self._budgets(work, now_s):
            self._buckets[name] = bucket.spend(units)

    def attained_units(self, tenant: str, now_s: float) -> float:
        """What a tenant was served lately over its weight."""
        units, as_of_s = self._attained.get(tenant, (0.0, now_s))
        return units * float(0.5 ** ((now_s - as_of_s) / self._half_life_s))

    def settle(self, asked: Asked, now_s: float, real_units: float | None = None) -> None:
        """It ended; what it did not use of its reservation flows back.  Without `real_units` it used all."""
        work = asked.work
        self._change(asked.flow, _Flow(-work.price.cost_units, -1))
        if real_units is not None:
            back_units = work.price.cost_units - real_units
            for name, bucket in self._budgets(work, now_s):
                given = bucket.spend(-back_units)
                self._buckets[name] = given.at(now_s, given.limit)

    def wait(self, asked: Asked, *, is_over: bool) -> None:
        """It waits before its lane, or that is over."""
        units = asked.work.price.cost_units
        if is_over:
            self._change(asked.flow, _Flow(waiting_units=-units, waiting_requests=-1))
        else:
            self._change(asked.flow, _Flow(waiting_units=units, waiting_requests=1))

    def _change(self, flow: tuple[str, str], by: _Flow) -> None:
        lane, tenant = flow
        mine, own = self._flows[flow], self._lanes[lane]
        self._open_units += by.open_units
        became_busy = mine.add(by)
        if became_busy:
            self._busy_tenants[lane] += became_busy * self._weight_of(tenant)
        self._busy_weight += self._weights[lane] * own.add(by)

    def _weight_of(self, tenant: str) -> float:
        weight = self._tenant_weights.get(tenant)
        if weight is None:
            limit = self._limit_of("tenant", tenant)
            weight = self._tenant_weights[tenant] = 1.0 if limit is None else limit.refill_units_per_s
        return weight

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
