"""Ids that were ended while the ledger could not note it: another copy of the same record must not be answered too."""

from collections import OrderedDict
from itertools import islice

from streams.budgets import Budgets, BudgetsUnavailable, Ending

MAX_IDS = 10_000
"""Beyond it the oldest is forgotten; a copy of it is then found only in the reply log."""
_AT_ONCE = 500


class Unnoted:
    """One for all agents of a worker, on their event loop."""

    def __init__(self, budgets: Budgets) -> None:
        """`budgets` gets the notes as soon as it can be asked."""
        self._budgets = budgets
        self._endings: OrderedDict[str, Ending] = OrderedDict()

    def __contains__(self, identity: str) -> bool:
        return identity in self._endings

    def add(self, identity: str, why: str = "") -> None:
        """An id is about to be answered, and no one else knows."""
        self._endings[identity] = Ending(identity, why, also_reserved=False)
        while len(self._endings) > MAX_IDS:
            self._endings.popitem(last=False)

    async def note(self) -> None:
        """Let the ledger have them, before it is asked about their copies.  Nothing while it cannot be asked."""
        while self._endings:
            endings = list(islice(self._endings.values(), _AT_ONCE))
            try:
                await self._budgets.finish(endings)
            except BudgetsUnavailable:
                return
            for ending in endings:
                self._endings.pop(ending.id, None)
