"""Sharing a pool's lanes: who must wait before them, and how long the wait on them is.  Pure.

`reserve.lua` computes the same inside Redis, where the figures change from one request of a batch to the next; a test
holds the two together.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the consumers of a pool can do, by their telemetry; None is unknown, never zero."""

    units_per_s: float | None = None
    """Cost finished a second while work waits."""
    units: float | None = None
    """Cost inside the engines when they are full."""

    def window_units(self, window_s: float) -> float | None:
        """Cost that the engines and `window_s` seconds of lanes hold together."""
        if self.units_per_s is None or self.units is None or self.units_per_s <= 0:
            return None
        return self.units + self.units_per_s * window_s


class Share(msgspec.Struct, frozen=True):
    """A lane and a tenant's place in it, before the request.  Open: admitted and not settled."""

    pool_open_units: float = 0.0
    lane_open_units: float = 0.0
    lane_open_requests: int = 0
    lane_ratio: float = 1.0
    """The lane's weight over those of all lanes with open or waiting work, itself included."""
    mine_open_units: float = 0.0
    mine_waiting_units: float = 0.0
    """Cost of the tenant's requests that wait before this lane."""
    tenant_ratio: float = 1.0
    """The tenant's weight over those of all tenants with open or waiting work in the lane, itself included."""
    lane_waiting_units: float = 0.0
    """Cost of all tenants' requests that wait before this lane."""
    others: tuple[tuple[float, float], ...] = ()
    """Of each other busy lane of the pool: cost open on it and waiting before it, and its weight over this lane's."""

    def fair_units(self, window_units: float) -> float:
        """The tenant's part of the window."""
        return window_units * self.lane_ratio * self.tenant_ratio


def must_wait(units: float, share: Share, window_units: float | None, *, is_back: bool) -> bool:
    """Whether a request waits before the lane: the pool is saturated and its tenant has its share.

    With room in the window nobody waits, and a tenant with nothing on the lane always gets one request in.  `is_back`:
    it waited already, so it does not queue behind what its tenant has waiting.
    """
    if window_units is None or share.pool_open_units + units <= window_units or share.mine_open_units <= 0:
        return False
    if share.mine_waiting_units > 0 and not is_back:
        return True
    return share.mine_open_units + units > share.fair_units(window_units)


def before_lane_s(units: float, share: Share, capacity: Capacity, window_s: float, *, is_back: bool) -> float:
    """Predicted wait before the lane of a request that `must_wait`: what its tenant has too much, at its own rate.

    Of one that is back only what is open counts: what waits is behind it or has waited as long.
    """
    window_units = capacity.window_units(window_s)
    if window_units is None or not capacity.units_per_s:
        return 0.0
    ahead_units = share.mine_open_units + units - share.fair_units(window_units)
    if not is_back:
        ahead_units += share.mine_waiting_units
    return max(0.0, ahead_units) / (capacity.units_per_s * share.lane_ratio * share.tenant_ratio)


def alone_s(units: float, share: Share, capacity: Capacity, *, is_back: bool) -> float:
    """The least wait before the lane: if the pool did nothing but what its tenant has there."""
    if not capacity.units_per_s:
        return 0.0
    ahead_units = share.mine_open_units + units + (0.0 if is_back else share.mine_waiting_units)
    return ahead_units / capacity.units_per_s


def on_lane_s(share: Share, capacity: Capacity) -> float | None:
    """Predicted wait on the lane: its part of the work that is not inside an engine, and what others get meanwhile.

    None while the drain rate is unknown.
    """
    if capacity.units_per_s is None or capacity.units is None or capacity.units_per_s <= 0:
        return None
    lane_units = share.lane_open_units * _outside_ratio(share, capacity.units)
    return _with_others(lane_units, share.others) / capacity.units_per_s


def in_all_s(units: float, share: Share, capacity: Capacity, *, is_back: bool) -> float:
    """Predicted wait before the lane and on it of a request that `must_wait`; 0 while the drain rate is unknown."""
    if capacity.units_per_s is None or capacity.units is None or capacity.units_per_s <= 0:
        return 0.0
    mine_units = share.mine_open_units * _outside_ratio(share, capacity.units) + units
    if not is_back:
        mine_units += share.mine_waiting_units
    beside_units = share.lane_open_units + share.lane_waiting_units - share.mine_open_units - share.mine_waiting_units
    lane_units = _with_others(mine_units, [(max(0.0, beside_units), 1 / share.tenant_ratio - 1)])
    return _with_others(lane_units, share.others) / capacity.units_per_s


def _outside_ratio(share: Share, inside_units: float) -> float:
    """Part of the pool's open work that no engine holds."""
    return 1 - inside_units / share.pool_open_units if share.pool_open_units > inside_units else 0.0


def _with_others(own_units: float, others: Iterable[tuple[float, float]]) -> float:
    """What is served until a queue's own work is: others get what their weights give them, until they have no more.

    Generalized processor sharing (Parekh, Gallager, 1993) without arrivals.
    """
    others_units = 0.0
    for units, weight_ratio in others:
        given_units = own_units * weight_ratio
        others_units += units if units < given_units else given_units
    return own_units + others_units
