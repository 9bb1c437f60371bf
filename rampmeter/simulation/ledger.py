"""What `reserve.lua` keeps in Redis, in memory: who has what open and waiting on which lane, and tenants' budgets.

The decision is `streams.policy.admission`; here are only its facts.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from streams.policy.admission import Facts
from streams.policy.degrade import Limit, Local
from streams.policy.sharing import Share
from topics.records import Work


@dataclass(slots=True)
class _Flow:
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


def flow_of(work: Work) -> tuple[str, str]:
    """Lane and tenant."""
    return f"{work.request.priority}.{work.price.length}", work.request.tenant


def unbound(_: str) -> None:
    """No budget."""


class Ledger:
    """One pool's.  Invariant: sums over lanes are those over their tenants."""

    def __init__(
        self, lane_weights: dict[str, float], half_life_s: float, limit_of: Callable[[str], Limit | None] = unbound
    ) -> None:
        """`half_life_s` is that of what a tenant was served; `limit_of` its budget, None for one that never binds."""
        self._weights, self._half_life_s, self._limit_of = lane_weights, half_life_s, limit_of
        self._lanes = {lane: _Flow() for lane in lane_weights}
        self._flows: defaultdict[tuple[str, str], _Flow] = defaultdict(_Flow)
        self._busy_tenants: dict[str, int] = dict.fromkeys(lane_weights, 0)
        self._buckets: dict[str, Local] = {}
        self._open_units = self._busy_weight = 0.0
        self._attained: dict[str, tuple[float, float]] = {}

    def facts(self, work: Work, now_s: float) -> Facts:
        """What is known of a request before it is decided."""
        lane, tenant = flow = flow_of(work)
        own, mine = self._lanes[lane], self._flows[flow]
        weight = self._weights[lane]
        busy_weight = self._busy_weight if own.is_busy else self._busy_weight + weight
        tenants = self._busy_tenants[lane] + (not mine.is_busy)
        share = Share(
            self._open_units, own.open_units, own.open_requests, weight / busy_weight,
            mine.open_units, mine.waiting_units, 1 / tenants,
        )  # fmt: skip
        bucket = self._bucket(tenant, now_s)
        if bucket is None:
            return Facts(share)
        units = work.price.cost_units
        wait_s = bucket.wait_s(units + mine.waiting_units)
        if wait_s is None:
            return Facts(share, "tenant", never_cap_units=bucket.limit.cap_units)
        return Facts(share, "tenant" if wait_s > 0 else "", wait_s)

    def admit(self, work: Work, now_s: float) -> None:
        """It goes to its lane: reserved and open."""
        self._change(work, _Flow(work.price.cost_units, 1))
        tenant = work.request.tenant
        self._attained[tenant] = self.attained_units(tenant, now_s) + work.price.cost_units, now_s
        bucket = self._bucket(work.request.tenant, now_s)
        if bucket is not None:
            self._buckets[work.request.tenant] = bucket.spend(work.price.cost_units)

    def attained_units(self, tenant: str, now_s: float) -> float:
        """What a tenant was served lately."""
        units, as_of_s = self._attained.get(tenant, (0.0, now_s))
        return units * float(0.5 ** ((now_s - as_of_s) / self._half_life_s))

    def settle(self, work: Work) -> None:
        """It ended."""
        self._change(work, _Flow(-work.price.cost_units, -1))

    def wait(self, work: Work, *, is_over: bool) -> None:
        """It waits before its lane, or that is over."""
        units = work.price.cost_units
        if is_over:
            self._change(work, _Flow(waiting_units=-units, waiting_requests=-1))
        else:
            self._change(work, _Flow(waiting_units=units, waiting_requests=1))

    def _change(self, work: Work, by: "_Flow") -> None:
        lane, _ = flow = flow_of(work)
        mine, own = self._flows[flow], self._lanes[lane]
        self._open_units += by.open_units
        self._busy_tenants[lane] += mine.add(by)
        self._busy_weight += self._weights[lane] * own.add(by)

    def _bucket(self, tenant: str, now_s: float) -> Local | None:
        limit = self._limit_of(tenant)
        if limit is None:
            return None
        bucket = self._buckets.get(tenant) or Local(0.0, 0.0, limit)
        self._buckets[tenant] = bucket = bucket.at(now_s, limit)
        return bucket
