"""Orders of operators and clients: which hold, and what they stop.  Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from topics.orders import pause_key
from topics.records import Control, ControlAction, ControlKind, Priority

MAX_CANCELLED = 100_000
"""Cancelled ids that are known at once; beyond it the oldest is forgotten."""
MAX_ORDERS = 10_000
"""Tenants, pools and classes under an order at once; beyond it an order about another one is ignored."""

Fate = Literal["applied", "repeated", "stale", "too_many"]


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the control topic."""

    key: str
    order: Control | None
    """None is a tombstone: the key's order holds no longer."""
    at_s: float
    """By the reader's clock, or by the broker's for what lay in the topic before."""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """All orders that hold.  Replaced as a whole, so that readers need no lock."""

    cancelled: Mapping[tuple[str, str | None], Event] = field(default_factory=lambda: MappingProxyType({}))
    """By request id and the tenant that the order names."""
    orders: Mapping[str, Control] = field(default_factory=lambda: MappingProxyType({}))
    """The last order of each key about tenants, pools, classes and the global budget."""
    paused: frozenset[str] = frozenset()
    """Keys whose last order is a pause."""

    def is_cancelled(self, request_id: str, tenant: str, since_s: float) -> bool:
        """Whether an order since `since_s` cancels this request; an order that names a tenant cancels only its own."""
        if not self.cancelled:
            return False
        return any(
            event is not None and event.at_s >= since_s
            for event in (self.cancelled.get((request_id, tenant)), self.cancelled.get((request_id, None)))
        )

    def paused_reason(self, tenant: str, pool: str, priority: Priority) -> str | None:
        """What keeps this work waiting, as a sentence."""
        if not self.paused:
            return None
        for kind, name in ((ControlKind.TENANT, tenant), (ControlKind.POOL, pool), (ControlKind.CLASS, priority)):
            if pause_key(kind, name) in self.paused:
                return f"the {kind} {name} is paused"
        return None


def fold(state: State, events: Iterable[Event], forget_before_s: float) -> tuple[State, list[tuple[Event, Fate]]]:
    """The state after these events, and what each did.  Cancellations before `forget_before_s` are dropped."""
    cancelled = {place: event for place, event in state.cancelled.items() if event.at_s >= forget_before_s}
    orders = dict(state.orders)
    fates: list[tuple[Event, Fate]] = []
    for event in events:
        if event.order is None:
            fates.append((event, "applied" if orders.pop(event.key, None) is not None else "repeated"))
        elif event.order.action is ControlAction.CANCEL:
            stale = event.at_s < forget_before_s
            fates.append((event, "stale" if stale else _cancel(cancelled, event, event.order)))
        elif event.order.action is ControlAction.DRAIN:
            fates.append((event, "applied"))  # consumers follow it; admission only writes it down
        else:
            fates.append((event, _order(orders, event.key, event.order)))
    paused = frozenset(key for key, order in orders.items() if order.action is ControlAction.PAUSE)
    return State(MappingProxyType(cancelled), MappingProxyType(orders), paused), fates


def _cancel(cancelled: dict[tuple[str, str | None], Event], event: Event, order: Control) -> Fate:
    place = (order.name, order.tenant)
    before = cancelled.get(place)
    if before is not None and before.order is not None and before.order.id == order.id:
        return "repeated"
    cancelled.pop(place, None)  # so that the dictionary stays in the order of time
    cancelled[place] = event
    if len(cancelled) > MAX_CANCELLED:
        del cancelled[next(iter(cancelled))]
    return "applied"


def _order(orders: dict[str, Control], key: str, order: Control) -> Fate:
    before = orders.get(key)
    if before is None and len(orders) >= MAX_ORDERS:
        return "too_many"
    orders[key] = order
    return "repeated" if before is not None and before.id == order.id else "applied"
