"""Claims of request ids in Redis: who runs what, so that each id is answered once.  One call serves many ids.

A claim also keeps the reservation of its id from lapsing, if there is one.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import NamedTuple

import redis.asyncio
import structlog
from redis.exceptions import NoScriptError, RedisError

from topics.clock import Clock
from topics.errors import PipelineError
from topics.keys import Keys

log = structlog.get_logger()

_SCRIPT = (resources.files("gpu_consumers") / "claims.lua").read_text("utf-8")
_SHA = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()

_HAND_OVER_S = 3.0
"""From the call that holds a claim for its answer to the producer.  Too small: while Redis is slow it is held again and
again.  Too large: see `gpu.delivery_s`."""
_EXPIRY_LATE_S = 1.0
"""How late the producer may notice that a record has expired."""


_SKEW_S = 5.0
"""How far the clocks of Redis, the broker and admission may be apart.  Too small: work that was answered before Redis
lost its memory runs again.  Too large: what was made after it is looked up in vain."""


class ClaimsUnavailable(PipelineError):
    """Redis did not answer: nothing is known, so nothing new may run."""


class Verdict(StrEnum):
    """The answer to a claim."""

    MINE = "m"
    FORGOTTEN = "f"
    """Ours, but it may have been answered before Redis lost its memory."""
    UNCLAIMED = "u"
    """Redis is away, and work goes on without it: anyone else may run the id too."""
    TAKEOVER = "t"
    HELD = "h"
    DONE = "d"


class Asked(NamedTuple):
    """An id to claim."""

    id: str
    attempt: int
    made_s: float
    """When its work was first made: nobody can have claimed or answered it earlier."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The time is set for what must be looked up: since when it can have been answered.

    `takeovers` are the owners that were lost, the last included.
    """

    verdict: Verdict
    since_s: float = 0.0
    takeovers: int = 0


class Memory(NamedTuple):
    """Since when Redis remembers claims, and whether it lost earlier ones that someone knew of."""

    since_ms: int
    is_lost: bool


class Place(NamedTuple):
    """Where an answer lies; an empty topic when only a dead letter could be written."""

    topic: str = ""
    partition: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Terms:
    """Who claims, under which keys, for how long, and for how long an answer is remembered and under way."""

    owner: str
    keys: Keys
    lease_s: float
    remember_s: float
    delivery_s: float
    """After it the producer sends an answer no more."""
    goes_without: bool = False
    """Work goes on while Redis is away."""

    @property
    def hold_s(self) -> float:
        """The lease of a claim whose answer goes out."""
        return self.delivery_s + _HAND_OVER_S + _EXPIRY_LATE_S

    @property
    def untold_s(self) -> float:
        """After a loss of memory whoever still runs or answers an id has told so again by then, or will not answer."""
        return max(self.lease_s, self.hold_s)


class Claims:
    """The ids that this process holds.  Touched only by the loop, but that any thread may ask `is_sure`.

    Invariant: an id is `sure` only while its lease, counted from before the call that got it, outlasts an answer that
    is handed to the producer now: a process that stands still meanwhile, or a broker that is away, cannot make it late.
    No call is ever cancelled, since that could mix up the connection's answers; the socket's timeout bounds it.
    """

    def __init__(self, client: redis.asyncio.Redis, clock: Clock, terms: Terms) -> None:
        self._client = client
        self._clock = clock
        self._terms = terms
        self._margin_s = terms.hold_s - _HAND_OVER_S
        self._sure_until_s: dict[str, float] = {}
        self._attempts: dict[str, int] = {}
        self.available = True
        self.memory: Memory | None = None
        """As of the last call; None before the first."""

    @property
    def goes_without(self) -> bool:
        """Whether work goes on while Redis is away."""
        return self._terms.goes_without

    def may_have_forgotten(self, made_s: float) -> bool:
        """Tell whether work made then may have been claimed before this memory of Redis began."""
        return self.memory is not None and _from_ms(made_s) <= self.memory.since_ms

    def holds(self, request_id: str) -> bool:
        """Tell whether this process claimed the id and has not settled it."""
        return request_id in self._sure_until_s

    def is_sure(self, request_id: str) -> bool:
        """Tell whether nobody else can hold the id before what is sent now has arrived or never will."""
        return self._clock.mono_s() < self._sure_until_s.get(request_id, 0.0) - self._margin_s

    def held_ids(self) -> list[str]:
        """All ids held."""
        return list(self._sure_until_s)

    async def claim(self, asks: Sequence[Asked]) -> list[Claimed]:
        """Claim ids, none of them held already and none twice.  Raises ClaimsUnavailable, or goes without."""
        until_s = self._clock.mono_s() + self._terms.lease_s
        facts = [fact for ask in asks for fact in (ask.attempt, _from_ms(ask.made_s))]
        try:
            marks, more = await self._call("claim", [ask.id for ask in asks], facts)
        except ClaimsUnavailable:
            if not self._terms.goes_without:
                raise
            marks, more = Verdict.UNCLAIMED * len(asks), []
        past = iter(more)
        claimed = []
        for ask, mark in zip(asks, marks, strict=True):
            verdict = Verdict(mark)
            if verdict not in {Verdict.HELD, Verdict.DONE}:
                self._sure_until_s[ask.id] = 0.0 if verdict is Verdict.UNCLAIMED else until_s
                self._attempts[ask.id] = ask.attempt
            if verdict is Verdict.TAKEOVER:
                claimed.append(Claimed(verdict, int(next(past)) / 1000, int(next(past))))
            else:
                claimed.append(Claimed(verdict, ask.made_s if verdict is Verdict.FORGOTTEN else 0.0))
        return claimed

    async def renew(self, ids: Collection[str]) -> list[str]:
        """Renew the leases and return the ids that were lost; those are held no more.  Raises ClaimsUnavailable."""
        return await self._extend(ids, self._terms.lease_s)

    async def hold(self, ids: Collection[str]) -> list[str]:
        """The same before answers go out: the leases outlast these."""
        return await self._extend(ids, self._terms.hold_s)

    async def _extend(self, ids: Collection[str], lease_s: float) -> list[str]:
        until_s = self._clock.mono_s() + lease_s
        ids = [i for i in ids if i in self._sure_until_s]
        marks, _ = await self._call("renew", ids, [self._attempts[i] for i in ids], lease_s)
        lost = []
        for request_id, mark in zip(ids, marks, strict=True):
            if mark == "0":
                lost.append(request_id)
                self._forget(request_id)
            elif request_id in self._sure_until_s:  # it may have been settled meanwhile
                self._sure_until_s[request_id] = max(until_s, self._sure_until_s[request_id])
        return lost

    async def done(self, answered: Sequence[tuple[str, Place]]) -> None:
        """Note where the answers lie; the ids are held no more.  Raises ClaimsUnavailable."""
        places: list[str | int] = []
        for _, place in answered:
            places += place
        await self._call("done", [i for i, _ in answered], places)
        for request_id, _ in answered:
            self._forget(request_id)

    async def release(self, ids: Sequence[str]) -> None:
        """Give ids back unanswered.  Raises ClaimsUnavailable."""
        await self._give_back("release", ids)

    async def defer(self, ids: Sequence[str]) -> None:
        """Give ids back that were taken over and not begun, as they were before.  Raises ClaimsUnavailable."""
        await self._give_back("defer", ids)

    def let_lapse(self, ids: Iterable[str]) -> None:
        """Hold these no more; others get them when their leases end.  Renewed without being run, nobody ever would."""
        for request_id in ids:
            self._forget(request_id)

    async def _give_back(self, verb: str, ids: Sequence[str]) -> None:
        await self._call(verb, ids, ())
        for request_id in ids:
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self._sure_until_s.pop(request_id, None)
        self._attempts.pop(request_id, None)

    async def look(self) -> None:
        """See whether Redis answers and still has its memory.  Raises ClaimsUnavailable."""
        await self._run("look", (), ())

    async def _call(
        self, verb: str, ids: Sequence[str], more: Iterable[str | int], lease_s: float | None = None
    ) -> tuple[str, list[bytes]]:
        if self._terms.goes_without and not self.available:
            # Who goes on without Redis must not wait for each call: only `look` asks whether it is back.
            raise ClaimsUnavailable("known to be away")
        return await self._run(verb, ids, more, lease_s) if ids else ("", [])

    async def _run(
        self, verb: str, ids: Sequence[str], more: Iterable[str | int], lease_s: float | None = None
    ) -> tuple[str, list[bytes]]:
        terms, keys = self._terms, self._terms.keys
        arguments = (
            *map(keys.claim, ids),
            keys.expiries(),
            keys.memory(),
            verb,
            terms.owner,
            int((lease_s or terms.lease_s) * 1000),
            int(terms.remember_s * 1000),
            keys.claim(""),
            "" if self.memory is None else self.memory.since_ms,
            int(terms.untold_s * 1000),
            *more,
        )
        try:
            try:
                answer = await self._client.evalsha(_SHA, len(ids) + 2, *arguments)
            except NoScriptError:
                answer = await self._client.eval(_SCRIPT, len(ids) + 2, *arguments)
        except (RedisError, OSError) as error:
            self.available = False
            raise ClaimsUnavailable(type(error).__name__) from error
        self.available = True
        self._note_memory(Memory(int(answer[1]), answer[2] == b"1"))
        return answer[0].decode(), answer[3:]

    def _note_memory(self, memory: Memory) -> None:
        if self.memory is not None and memory != self.memory:
            log.warning("claims_forgotten", since_s=memory.since_ms / 1000)
        self.memory = memory


def _from_ms(made_s: float) -> int:
    return int((made_s - _SKEW_S) * 1000)
