"""Looks whether the ledger's books agree: one of all workers, now and then."""

import asyncio
from collections.abc import Callable, Iterable

from streams import metrics
from streams.budgets import Budgets, BudgetsUnavailable

EVERY_S = 10.0
"""Too small: load on Redis.  Too large: a drift is seen as late."""
MOST_REQUESTS = 2000
"""Too small: under load nothing is known.  Too large: Redis serves nobody meanwhile (about 10 us a request)."""


class Drift:
    """Shows by how much each pool's books differ; what could not be read has no series."""

    def __init__(self, pools: Iterable[str], budgets: Budgets, leads: Callable[[], bool]) -> None:
        """`leads` tells whether this worker is the one."""
        self._pools, self._budgets, self._leads = tuple(pools), budgets, leads

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.step()

    async def step(self) -> None:
        """Look once."""
        try:
            units = await self._budgets.drift(self._pools, MOST_REQUESTS) if self._leads() else {}
        except BudgetsUnavailable:
            units = {}
        metrics.LEDGER_DRIFT.clear()
        for pool, by in units.items():
            metrics.LEDGER_DRIFT.labels(pool).set(by)
