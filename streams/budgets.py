"""The budget ledger's cache in Redis: one Lua call reserves, settles or marks a whole micro-batch."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import msgspec
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from structlog import get_logger

from streams import metrics
from streams.policy.admission import Never, Paid, Short
from streams.settings import Bucket, StreamsSettings
from topics import keys
from topics.records import Origin

_log = get_logger()
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Ask:
    """What a record wants.  `closed` remembers an id that is answered without any budget."""

    id: str
    origin: Origin
    reply_topic: str
    units: float
    pool: str
    tenant: str
    patience_s: float
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """The id is remembered as answered by admission itself."""


@dataclass(frozen=True, slots=True)
class Redelivered:
    """The same record was decided before; `state` is reserved, rejected or settled.

    `why` is what a rejection for want of budget was based on.
    """

    state: str
    at_s: float
    why: Short | Never | None = None


@dataclass(frozen=True, slots=True)
class Repeated:
    """Another record with this id came first; its answer goes to `reply_topic`."""

    at_s: float
    reply_topic: str
    may_be_answered: bool


Standing = Paid | Short | Never | Closed | Redelivered | Repeated


class Budgets:
    """Calls the scripts; waits while Redis is away, since an unasked budget is neither full nor empty."""

    def __init__(self, client: redis.asyncio.Redis, settings: StreamsSettings) -> None:
        """Register the scripts; EVALSHA falls back to EVAL when the server lost them."""
        self._settings = settings
        self._reserve = _script(client, "reserve.lua")
        self._settle = _script(client, "settle.lua")
        self._promote = _script(client, "promote.lua")
        self._window_ms = int(settings.dedupe_window_s * 1000)

    async def reserve(self, asks: Sequence[Ask]) -> list[Standing]:
        """Reserve each ask on all its levels or none; answers in the order of the asks."""
        if not asks:
            return []
        levels: dict[tuple[str, str], int] = {}
        wanted = [
            {
                "origin": f"{ask.origin.topic}/{ask.origin.partition}/{ask.origin.offset}",
                "reply": ask.reply_topic,
                "units": ask.units,
                "levels": [] if ask.closed else [levels.setdefault(x, len(levels) + 1) for x in _levels(ask)],
                "patience_s": ask.patience_s,
                "closed": ask.closed,
            }
            for ask in asks
        ]
        buckets = [self._bucket(level, name) for level, name in levels]
        payload = {
            "window_ms": self._window_ms,
            "levels": [{"refill": b.refill_units_per_s, "cap": b.cap_units} for b in buckets],
            "asks": wanted,
        }
        redis_keys = [keys.bucket(*level) for level in levels] + [keys.reservation(ask.id) for ask in asks]
        answers = _answers(await self._call(self._reserve, redis_keys, msgspec.json.encode(payload)))
        return [_standing(answer) for answer in answers]

    async def settle(self, ids: Sequence[str], real_units: Sequence[float]) -> list[str]:
        """Refund or charge the difference to the reservation, once per id."""
        payload = msgspec.json.encode({"window_ms": self._window_ms, "units": list(real_units)})
        answer = await self._call(self._settle, [keys.reservation(i) for i in ids], payload)
        return msgspec.json.decode(answer, type=list[str])

    async def promotable(self, ids: Sequence[str]) -> list[bool]:
        """Which ids are unclaimed and were not promoted before; they are marked as promoted."""
        redis_keys = [keys.claim(i) for i in ids] + [keys.promoted(i) for i in ids]
        return [bool(fresh) for fresh in await self._call(self._promote, redis_keys, str(self._window_ms))]

    def _bucket(self, level: str, name: str) -> Bucket:
        section = self._settings.streams
        match level:
            case "global":
                return section.global_budget
            case "pool":
                return section.pool_budget
            case _:
                return section.tenant_budgets.get(name, section.tenant_budget)

    async def _call(self, script, redis_keys: Sequence[str], payload: bytes | str):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        while True:
            try:
                # Never cancelled half way: a cancelled command leaves its reply to the next caller.
                answer = await asyncio.shield(script(keys=redis_keys, args=[payload]))
            except (RedisConnectionError, RedisTimeoutError) as error:
                if metrics.note("redis", available=False):
                    _log.warning("redis_unavailable", error=str(error), doing="intake waits; nothing is lost")
                await asyncio.sleep(_RETRY_S)
            except RedisError:
                metrics.note("redis", available=False)
                raise
            else:
                if metrics.note("redis", available=True):
                    _log.info("redis_available")
                return answer


def _script(client: redis.asyncio.Redis, name: str):  # type: ignore[no-untyped-def] # noqa: ANN202 - redis-py's own type
    return client.register_script(files("streams").joinpath(name).read_text())


_LEVELS = ("global", "pool", "tenant")


def _levels(ask: Ask) -> Iterable[tuple[str, str]]:
    return zip(_LEVELS, ("all", ask.pool, ask.tenant), strict=True)


class _Answer(msgspec.Struct):
    """What the script says of one ask."""

    s: str
    level: int = 0
    wait_s: float = 0.0
    cap: float = 0.0
    at_s: float = 0.0
    reply: str = ""
    ended: bool = False
    why: "_Answer | Literal[False] | None" = None


def _standing(answer: _Answer) -> Standing:
    match answer.s:
        case "paid":
            return Paid()
        case "closed":
            return Closed()
        case "short" | "never":
            return _want(answer)
        case "repeat":
            return Repeated(answer.at_s, answer.reply, answer.ended)
        case state:
            return Redelivered(state, answer.at_s, _want(answer.why) if answer.why else None)


def _want(answer: _Answer) -> Short | Never:
    level = _LEVELS[answer.level - 1]
    return Short(level, answer.wait_s) if answer.s == "short" else Never(level, answer.cap)


_answers = msgspec.json.Decoder(list[_Answer]).decode
