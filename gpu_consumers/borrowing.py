"""Lets a consumer of one length serve the other while that is needed; see `policy/roles.py`."""

import structlog

from gpu_consumers.dispatch import Dispatcher
from gpu_consumers.fleet import Fleet
from gpu_consumers.policy import roles
from gpu_consumers.settings import GpuSettings
from gpu_consumers.telemetry import AnyPoller
from topics.clock import Clock
from topics.records import Length, Role

log = structlog.get_logger()

LOOK_S = 0.5
"""Too large: each change is late by it."""


class Borrower:
    """Chooses what the poller subscribes to.  Touched only by the loop."""

    def __init__(
        self, settings: GpuSettings, fleet: Fleet, poller: AnyPoller, dispatcher: Dispatcher, clock: Clock
    ) -> None:
        self._settings, self._fleet, self._poller, self._dispatcher = settings, fleet, poller, dispatcher
        self._clock = clock
        self._role = settings.gpu.role
        self.state = roles.State(clock.mono_s())

    def look(self) -> None:
        """See how the pool is, and change the subscription if that is called for; whoever is leaving keeps his."""
        if self._dispatcher.is_draining:
            return
        gpu, before = self._settings.gpu, self.state
        own = Length.SHORT if self._role is Role.SHORT else Length.LONG
        partitions = self._settings.pools[gpu.pool].lane_partitions
        # Whoever takes nothing in has no room to help with.
        own_ratio = self._dispatcher.selector.demand_ratio(own) if self._dispatcher.takes_in else 1.0
        look = roles.Look(self._fleet.peers(), own_ratio, partitions)
        self.state = roles.decide(self._role, before, look, gpu.borrowing_rules(), self._clock.mono_s())
        if self.state.borrows != before.borrows:
            log.info("borrows" if self.state.borrows else "lets_go", reason=self.state.reason, own_ratio=own_ratio)
            self._poller.served = roles.serves(self._role, borrows=self.state.borrows)
