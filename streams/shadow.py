"""A shadow: admission with other settings beside the workers that serve.  Only decisions leave it.

Its ledger is its own.  What it admitted ends there when it did where it was served, with what it really used.
"""

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import TypeVar

import msgspec

from streams import metrics
from streams.budgets import Budgets, Charge
from streams.fleet import Fleet
from streams.holding import Pending
from streams.intake import Candidate
from streams.outbox import Outgoing, Sends, Undelivered
from streams.policy import fates
from streams.policy.fates import Fate, Refused, Used
from streams.settings import StreamsSettings
from topics import catalog, codec
from topics.clock import Clock
from topics.records import Work, no_body

MAX_REQUESTS = 20_000
"""Of each kind that is followed.  Too small: reservations stay until they lapse.  Too large: memory."""
_LOOK_S = 0.05

_Followed = TypeVar("_Followed")
CarryOut = Callable[[Sequence[Pending]], Awaitable[None]]


class Open:
    """What a shadow has admitted, and when each ends in its ledger.  One writer, the event loop.

    Whatever comes first, the admission here or the end there, is remembered.  Of more than `MAX_REQUESTS` the oldest is
    forgotten: its reservation lapses.
    """

    def __init__(self, settings: StreamsSettings) -> None:
        """Nothing is open."""
        self._models = settings.models
        self._works: OrderedDict[str, tuple[Work, float]] = OrderedDict()
        self._fates: OrderedDict[str, Fate] = OrderedDict()
        self._due: list[tuple[float, int, Charge]] = []
        self._order = count()

    def admit(self, work: Work, now_s: float, lasts_s: float) -> None:
        """It was admitted, and is open for `lasts_s` if it was refused where it is served."""
        match self._fates.pop(work.request.id, None):
            case Used() as used:
                self._end(now_s + (used.service_s or 0.0), self._charge(work, used))
            case Refused():
                self._end(now_s + lasts_s, _as_priced(work))
            case None:
                self._works[work.request.id] = work, now_s + lasts_s
                _bound(self._works, "admitted")

    def note(self, identity: str, fate: Fate, now_s: float) -> None:
        """What became of it where it is served."""
        match self._works.get(identity), fate:
            case None, Used(partial=True):
                pass  # what follows tells its end
            case None, _:
                self._fates[identity] = fate
                _bound(self._fates, "ended")
            case (work, until_s), Refused():
                del self._works[identity]
                self._end(until_s, _as_priced(work))
            case (work, _), Used() as used:
                if not used.partial:
                    del self._works[identity]
                self._end(now_s, self._charge(work, used))

    def take_due(self, now_s: float) -> list[Charge]:
        """What has ended by now."""
        taken = []
        while self._due and self._due[0][0] <= now_s:
            taken.append(heapq.heappop(self._due)[2])
        return taken

    def _end(self, at_s: float, charge: Charge) -> None:
        heapq.heappush(self._due, (at_s, next(self._order), charge))

    def _charge(self, work: Work, used: Used) -> Charge:
        priced = _as_priced(work)
        units = used.units(work, self._models)
        return replace(priced, attempt=used.attempt, units=units, partial=used.partial)


class Shadow:
    """The fence around the outbox, and what is behind it in place of the rest of the pipeline.

    Decisions go to the broker.  What waits in delay topics elsewhere waits in memory here, and what goes to a lane is
    open in this worker's own ledger until it ended where it is served.  Everything else is dropped.
    """

    def __init__(self, settings: StreamsSettings, clock: Clock, outbox: Sends, budgets: Budgets, fleet: Fleet) -> None:
        """`budgets` are the shadow's own."""
        self._clock, self._outbox, self._budgets, self._fleet = clock, outbox, budgets, fleet
        self._decisions = settings.topic("decisions")
        self._lanes = {lane for pool in settings.pools for lane in catalog.lanes(settings, pool)}
        self._delays_s = {catalog.deferred(settings, delay_s): delay_s for delay_s in settings.topics.defer_delays_s}
        self._open = Open(settings)
        self._later: list[tuple[float, int, Work]] = []
        self._order = count()
        self._told: deque[tuple[str, Fate]] = deque(maxlen=MAX_REQUESTS)

    async def deliver(self, records: Sequence[Outgoing]) -> list[Undelivered]:
        """See `Sends`."""
        lost = await self._outbox.deliver([record for record in records if record.topic == self._decisions])
        for record in records:
            if record.value is not None and record.topic in self._lanes:
                work = codec.decode_work(record.value)
                lasts_s = fates.lasts_s(work, self._fleet.capacity(work.price.pool))
                self._open.admit(_without_body(work), self._clock.mono_s(), lasts_s)
            elif record.value is not None and record.topic in self._delays_s:
                self._defer(codec.decode_work(record.value), self._delays_s[record.topic])
        return lost

    def note(self, identity: str, fate: Fate) -> None:
        """What became of a request where it is served.  From any thread."""
        self._told.append((identity, fate))

    def loops(self, carry_out: CarryOut) -> list[Callable[[], Awaitable[None]]]:
        """What runs beside the agents; `carry_out` takes what comes back."""

        async def settle() -> None:
            while True:
                await asyncio.sleep(_LOOK_S)
                await self.settle()

        async def come_back() -> None:
            while True:
                await asyncio.sleep(_LOOK_S)
                if due := self.take_back():
                    await carry_out(due)

        return [settle, come_back]

    async def settle(self) -> None:
        """Settle in the shadow's ledger what has ended by now."""
        now_s = self._clock.mono_s()
        while self._told:
            self._open.note(*self._told.popleft(), now_s)
        await self._budgets.settle(self._open.take_due(now_s))

    def take_back(self) -> list[Pending]:
        """What was deferred and is due."""
        due = []
        while self._later and self._later[0][0] <= self._clock.mono_s():
            due.append(Pending(Candidate(heapq.heappop(self._later)[2])))
        return due

    def _defer(self, work: Work, delay_s: int) -> None:
        if len(self._later) >= MAX_REQUESTS:
            metrics.FORGOTTEN.labels("deferred").inc()
            return
        heapq.heappush(self._later, (self._clock.mono_s() + delay_s, next(self._order), _without_body(work)))


def _without_body(work: Work) -> Work:
    return msgspec.structs.replace(work, request=msgspec.structs.replace(work.request, body=no_body()))


def _as_priced(work: Work) -> Charge:
    request, price = work.request, work.price
    return Charge(
        id=request.id,
        attempt=work.attempt,
        units=price.cost_units,
        partial=False,
        reserved_units=0.0 if work.unreserved else price.cost_units,
        tenant=request.tenant,
        pool=price.pool,
        priority=request.priority,
        lane=f"{request.priority}.{price.length}",
    )


def _bound(followed: OrderedDict[str, _Followed], what: str) -> None:
    while len(followed) > MAX_REQUESTS:
        followed.popitem(last=False)
        metrics.FORGOTTEN.labels(what).inc()
