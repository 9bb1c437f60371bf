"""Requests that this worker sent to a delay topic, so that a cancel order need not wait until they come back."""

from collections import OrderedDict

import msgspec

from streams.control import Controls
from topics.records import Work, no_body

MAX_IDS = 10_000
"""Beyond it the oldest is forgotten; its cancel order is carried out when it comes back."""


class Away:
    """One for all agents of a worker, on their event loop.  Keeps what an answer needs, never a body."""

    def __init__(self, controls: Controls) -> None:
        """`controls` knows the orders."""
        self._controls = controls
        self._works: OrderedDict[str, Work] = OrderedDict()

    def add(self, work: Work) -> None:
        """It was deferred."""
        request = msgspec.structs.replace(work.request, body=no_body())
        self._works[request.id] = msgspec.structs.replace(work, request=request)
        while len(self._works) > MAX_IDS:
            self._works.popitem(last=False)

    def discard(self, identity: str) -> None:
        """It is back."""
        self._works.pop(identity, None)

    def take_cancelled(self) -> list[Work]:
        """Those under a cancel order."""
        is_cancelled = self._controls.is_cancelled
        taken = [work for work in self._works.values() if is_cancelled(work.request.id, work.request.tenant)]
        for work in taken:
            self.discard(work.request.id)
        return taken
