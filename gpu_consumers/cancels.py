"""Which requests were ordered to be cancelled: remembered for work that comes after its cancel."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from gpu_consumers.assignment import Entry
from gpu_consumers.metrics import Metrics
from topics.clock import Clock
from topics.records import Control

_Key = tuple[str, str | None]


class Noted(NamedTuple):
    """An order to cancel."""

    order: Control
    at_s: float
    """By the reader's clock, or by the broker's for what lay in the topic before."""


class Cancels:
    """The last `bound` orders of the last `keep_s`, the oldest forgotten.  Touched only by the loop.

    After `keep_s` an id may be used again, and a request that uses it is another one.  An order that names another
    tenant than the request's is counted once and dropped.
    """

    def __init__(self, bound: int, keep_s: float, clock: Clock, metrics: Metrics) -> None:
        self._bound, self._keep_s, self._clock, self._metrics = bound, keep_s, clock, metrics
        self._orders: OrderedDict[_Key, Noted] = OrderedDict()
        self._tenants: dict[str, set[str | None]] = {}

    def note(self, orders: Iterable[Noted]) -> set[str]:
        """Remember these; returns the ids that they are about."""
        ids = set()
        for noted in orders:
            order = noted.order
            key = (order.name, order.tenant)
            self._orders[key] = noted
            self._orders.move_to_end(key)
            self._tenants.setdefault(order.name, set()).add(order.tenant)
            ids.add(order.name)
        self.forget_old()
        return ids

    def forget_old(self) -> None:
        """Drop what is beyond the bounds."""
        while self._orders and (len(self._orders) > self._bound or self._is_old(next(iter(self._orders.values())))):
            self._drop(next(iter(self._orders)))

    def applies(self, entry: Entry) -> bool:
        """Whether the entry is cancelled; its order is noted in it."""
        if entry.order is None and entry.id in self._tenants:
            for key in [(entry.id, tenant) for tenant in self._tenants[entry.id]]:
                if self._is_old(self._orders[key]):
                    self._drop(key)
            tenant = entry.work.request.tenant
            noted = self._orders.get((entry.id, tenant)) or self._orders.get((entry.id, None))
            if noted is None:
                self._drop_foreign(entry.id)
            else:
                entry.order = noted.order
        return entry.order is not None

    def _is_old(self, noted: Noted) -> bool:
        return noted.at_s < self._clock.wall_s() - self._keep_s

    def _drop_foreign(self, request_id: str) -> None:
        for tenant in list(self._tenants.get(request_id, ())):
            self._drop((request_id, tenant))
            self._metrics.cancels.labels("foreign").inc()

    def _drop(self, key: _Key) -> None:
        del self._orders[key]
        request_id, tenant = key
        self._tenants[request_id].discard(tenant)
        if not self._tenants[request_id]:
            del self._tenants[request_id]
