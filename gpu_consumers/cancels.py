"""Which requests were ordered to be cancelled: remembered for work that comes after its cancel."""

from collections import OrderedDict
from collections.abc import Iterable

from gpu_consumers.assignment import Entry
from gpu_consumers.metrics import Metrics
from topics.records import Control, ControlAction, ControlKind

_Key = tuple[str, str | None]


def is_cancel(order: Control) -> bool:
    """Whether this order concerns a consumer: the others are for admission."""
    return order.action is ControlAction.CANCEL and order.kind is ControlKind.REQUEST


class Cancels:
    """The last `bound` orders, the oldest forgotten.  Touched only by the loop.

    An order that names another tenant than the request's is counted once and dropped.
    """

    def __init__(self, bound: int, metrics: Metrics) -> None:
        self._bound, self._metrics = bound, metrics
        self._orders: OrderedDict[_Key, Control] = OrderedDict()
        self._tenants: dict[str, set[str | None]] = {}

    def note(self, orders: Iterable[Control]) -> set[str]:
        """Remember these; returns the ids that they are about."""
        ids = set()
        for order in orders:
            key = (order.name, order.tenant)
            self._orders.setdefault(key, order)
            self._tenants.setdefault(order.name, set()).add(order.tenant)
            ids.add(order.name)
        while len(self._orders) > self._bound:
            self._drop(next(iter(self._orders)))
        return ids

    def applies(self, entry: Entry) -> bool:
        """Whether the entry is cancelled; its order is noted in it."""
        if entry.order is None and entry.id in self._tenants:
            tenant = entry.work.request.tenant
            entry.order = self._orders.get((entry.id, tenant)) or self._orders.get((entry.id, None))
            if entry.order is None:
                self._drop_foreign(entry.id)
        return entry.order is not None

    def _drop_foreign(self, request_id: str) -> None:
        for tenant in list(self._tenants[request_id]):
            self._drop((request_id, tenant))
            self._metrics.cancels.labels("foreign").inc()

    def _drop(self, key: _Key) -> None:
        del self._orders[key]
        request_id, tenant = key
        self._tenants[request_id].discard(tenant)
        if not self._tenants[request_id]:
            del self._tenants[request_id]
