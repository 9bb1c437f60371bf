"""The budget ledger's cache in Redis: one Lua call reserves, ends, settles or marks a whole micro-batch."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, TypeVar, cast

import redis.asyncio
from redis.exceptions import RedisError
from structlog import get_logger

from streams import ledger_wire as wire
from streams import metrics
from streams.breaker import Breaker, is_away
from streams.ledger_wire import (
    Ask,
    Charge,
    Closed,
    Ending,
    Level,
    New,
    Paid,
    Redelivered,
    Refused,
    Repeated,
    Settled,
    Standing,
    Touched,
)
from streams.limits import LiveLimits
from streams.memory import Memory, mark_of
from streams.policy.sharing import Capacity
from streams.settings import Bucket, StreamsSettings
from topics import keys
from topics.errors import PipelineError
from topics.notes import Balances

__all__ = [
    "Ask",
    "Budgets",
    "BudgetsUnavailable",
    "Charge",
    "Closed",
    "Ending",
    "New",
    "Paid",
    "Redelivered",
    "Refused",
    "Repeated",
    "Settled",
    "Standing",
]

_log = get_logger()
_RETRY_S = 0.5
_RESTORED_AT_ONCE = 500
_LOST = b"lost"
_Script = Callable[..., Awaitable[bytes]]
_Answer = TypeVar("_Answer")


class BudgetsUnavailable(PipelineError):
    """The ledger cannot be asked now: nothing is known of any budget.  `reason` is slow, away, open or lost."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the budget ledger cannot be asked: {reason}")
        self.reason = reason


class Budgets:
    """Calls the scripts.  Those of admission end within `degrade.timeout_s`; those of settlement wait for Redis.

    No call is ever cancelled: its answer would go to the next caller.  One that comes too late is dropped; what it did
    is found again by the id, or lapses.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        settings: StreamsSettings,
        breaker: Breaker,
        limits: LiveLimits,
        by: str = "streams",
    ) -> None:
        """Register the scripts; EVALSHA falls back to EVAL when the server lost them.  `by` is for the balances."""
        self._settings, self._breaker, self._limits, self._by = settings, breaker, limits, by
        self._client, self._keys = client, keys.of(settings, settings.streams.shadow)
        self._reserve = _script(client, "buckets.lua", "ledger.lua", "turns.lua", "reserve.lua")
        self._settle = _script(client, "buckets.lua", "ledger.lua", "settle.lua")
        self._finish = _script(client, "buckets.lua", "ledger.lua", "finish.lua")
        self._restore = _script(client, "buckets.lua", "restore.lua")
        self._promote = _script(client, "promote.lua")
        self._drift = _script(client, "drift.lua")
        self._touched: dict[str, float] = {}
        self._touched_at_s = 0.0
        self._late: set[asyncio.Future[Any]] = set()
        self.is_lost = False
        """Redis answers, but has lost the balances: `restore` is wanted."""
        self.memory: Memory | None = None
        """None while it is not known what the ledger remembers."""
        self._was_away = False

    async def reserve(
        self, asks: Sequence[Ask], capacities: Mapping[str, Capacity], known: Memory | None = None
    ) -> list[Standing]:
        """Reserve each ask on all its levels or none; answers in the order of the asks.

        Raises BudgetsUnavailable; what was asked may then have been reserved all the same, but not if it says lost:
        then the ledger has no balances, or another memory than `known`.
        """
        if not asks:
            return []
        payload = wire.encode_asks(asks, capacities, self._settings, self._bucket)
        answer = await self._soon(self._reserve, self._ledger_keys(ask.id for ask in asks), payload, known)
        touched, standings = wire.decode_standings(answer)
        self._note(touched)
        return standings

    async def finish(self, endings: Sequence[Ending]) -> list[bool]:
        """Remember that these end without running; nothing of them waits or is held any more.

        Returns for each whether this call ended it: of several runs of one record only that one may answer.  Raises
        BudgetsUnavailable.
        """
        if not endings:
            return []
        payload = wire.encode_endings(endings, self._settings)
        answer = await self._soon(self._finish, self._ledger_keys(ending.id for ending in endings), payload)
        touched, firsts = wire.decode_finished(answer)
        self._note(touched)
        return firsts

    async def settle(self, charges: Sequence[Charge]) -> list[Settled]:
        """Refund or charge the difference to the reservation: once per id, and once per attempt of partial ones.

        Waits until Redis answers and has its balances.
        """
        while (settled := await self.try_settle(charges, None)) is None:
            pass
        return settled

    async def remembered(self) -> Memory:
        """What the ledger remembers, as soon as that is known."""
        while self.memory is None:  # noqa: ASYNC110 - the next ping tells
            await asyncio.sleep(_RETRY_S)
        return self.memory

    async def try_settle(self, charges: Sequence[Charge], known: Memory | None) -> list[Settled] | None:
        """Settle in one try.

        None, after a while, if Redis did not answer, has lost its balances, or remembers other things than `known`:
        then it must be found out again what of these was charged before.
        """
        if not charges:
            return []
        payload = wire.encode_charges(charges, self._settings, self._bucket)
        redis_keys = self._ledger_keys(charge.id for charge in charges)
        answer = await self._once(self._settle, redis_keys, payload, mark_of(known))
        if answer == _LOST:
            self.memory = None
            await asyncio.sleep(_RETRY_S)
        if answer is None or answer == _LOST:
            return None
        touched, settled = wire.decode_settled(answer)
        self._note(touched)
        return settled

    async def promotable(self, ids: Sequence[str]) -> list[bool]:
        """Which ids are unclaimed and were not promoted before; they are marked as promoted.  Waits for Redis."""
        redis_keys = [*map(self._keys.claim, ids), *map(self._keys.promoted, ids)]
        window_ms = str(int(self._settings.dedupe_window_s * 1000)).encode()
        marked = None
        while marked is None:
            marked = await self._once(self._promote, redis_keys, window_ms)
        return [bool(fresh) for fresh in marked]

    def take_balances(self) -> Balances | None:
        """Levels that calls changed since the last time, as of the latest of these calls; None when there are none."""
        if not self._touched:
            return None
        levels, self._touched = self._touched, {}
        return Balances(at_s=self._touched_at_s, by=self._by, levels=levels)

    async def drift(self, pools: Sequence[str], most_requests: int) -> dict[str, float]:
        """Open units of each pool beyond what its requests hold; empty where more requests than that are open.

        Raises BudgetsUnavailable.
        """
        redis_keys = [self._keys.ledger(), self._keys.expiries(), *map(self._keys.shares, pools)]
        call = self._drift(keys=redis_keys, args=[most_requests, wire.encode_lanes(), *pools])
        if (answer := await self._in_time(call)) == _LOST:
            raise BudgetsUnavailable("lost")
        units = [float(each) for each in answer]
        return dict(zip(pools, (o - h for o, h in zip(units[::2], units[1::2], strict=True)), strict=bool(units)))

    async def ping(self) -> None:
        """Ask Redis, whatever the breaker says, and see whether the ledger is whole.  Raises BudgetsUnavailable."""
        try:
            mark = cast(bytes | None, await self._in_time(self._client.get(self._keys.ledger())))
        except BudgetsUnavailable:
            self._forget()
            raise
        self.is_lost = mark is None
        if mark is None:
            self.memory = None
        elif self.memory is None or self.memory.mark != mark:
            since_s = float((await self._in_time(self._client.time()))[0]) if self._was_away else 0.0
            self._was_away, self.memory = False, Memory(mark, max(since_s, float(mark)))

    async def restore(self, levels: Mapping[str, tuple[float, float]]) -> None:
        """Put back what was known (bucket: level, server time) where nothing newer is, and mark the ledger as whole.

        Raises BudgetsUnavailable; then it may be repeated.
        """
        known = list(levels.items())
        starts = range(0, len(known), _RESTORED_AT_ONCE)
        for chunk in [dict(known[start : start + _RESTORED_AT_ONCE]) for start in starts] or [{}]:
            names = [name.partition(":")[::2] for name in chunk]
            redis_keys = [self._keys.ledger(), *(self._keys.bucket(*name) for name in names)]
            is_last = len(known) <= _RESTORED_AT_ONCE or known[-1][0] in chunk
            payload = wire.encode_levels(chunk, self._bucket, marks=is_last)
            await self._in_time(self._restore(keys=redis_keys, args=[payload]))
        self.is_lost = False

    def _bucket(self, level: Level) -> Bucket:
        return self._limits.of(*level)

    def _ledger_keys(self, ids: Iterable[str]) -> list[str]:
        return [self._keys.ledger(), *map(self._keys.reservation, ids)]

    def _note(self, touched: Touched) -> None:
        self._touched.update(touched.levels)
        metrics.show_levels(touched.levels)
        self._touched_at_s = max(self._touched_at_s, touched.at_s)

    def _forget(self) -> None:
        """It may have lost what it said that it has: a server that was away comes back with what it had saved."""
        self._was_away, self.memory = True, None

    async def _soon(
        self, script: _Script, redis_keys: Sequence[str], payload: bytes, known: Memory | None = None
    ) -> bytes:
        """For admission: not at all while the breaker is open, and never longer than the timeout."""
        if self._breaker.is_open:
            raise BudgetsUnavailable("open")
        answer = await self._in_time(script(keys=redis_keys, args=[payload, mark_of(known)]))
        self.is_lost = answer == _LOST
        if self.is_lost:
            self.memory = None
            raise BudgetsUnavailable("lost")
        return answer

    async def _in_time(self, call: Awaitable[_Answer]) -> _Answer:
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait((task,), timeout=self._settings.streams.degrade.timeout_s)
        finally:  # also when the caller is cancelled
            if not task.done():
                self._late.add(task)
                task.add_done_callback(self._drop)
        if not task.done():
            self._breaker.note(False)
            raise BudgetsUnavailable("slow")
        try:
            answer = task.result()
        except (RedisError, OSError) as error:
            if not is_away(error):
                raise
            self._breaker.note(False)
            self._forget()
            raise BudgetsUnavailable("away") from error
        self._breaker.note(True)
        return answer

    def _drop(self, task: asyncio.Future[Any]) -> None:
        """Nobody waits for this answer any more; what it says is found again by the id."""
        self._late.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not is_away(error):
            _log.error("late_answer_failed", error=type(error).__name__)

    async def _once(self, script: _Script, redis_keys: Sequence[str], *args: bytes) -> Any:
        """For what must happen in the end: the socket's timeout bounds it.  None, after a while, without an answer."""
        call = asyncio.ensure_future(script(keys=redis_keys, args=args))
        try:
            return await asyncio.shield(call)
        except (RedisError, OSError) as error:
            if not is_away(error):
                raise
            self._breaker.note(False)
            self._forget()
            await asyncio.sleep(_RETRY_S)
            return None


def _script(client: redis.asyncio.Redis, *names: str) -> _Script:
    text = "".join(files("streams").joinpath(name).read_text() for name in names)
    return cast(_Script, client.register_script(text))
