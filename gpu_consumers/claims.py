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
from redis.exceptions import NoScriptError, RedisError

from topics.clock import Clock
from topics.errors import PipelineError
from topics.keys import Keys

_SCRIPT = (resources.files("gpu_consumers") / "claims.lua").read_text("utf-8")
_SHA = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()

_HAND_OVER_S = 3.0
"""From the call that holds a claim for its answer to the producer.  Too small: while Redis is slow it is held again and
again.  Too large: see `gpu.delivery_s`."""
_EXPIRY_LATE_S = 1.0
"""How late the producer may notice that a record has expired."""


class ClaimsUnavailable(PipelineError):
    """Redis did not answer: nothing is known, so nothing new may run."""


class Verdict(StrEnum):
    """The answer to a claim."""

    MINE = "m"
    TAKEOVER = "t"
    HELD = "h"
    DONE = "d"


@dataclass(frozen=True, slots=True)
class Claimed:
    """Both are set for a takeover: when the id was first claimed, and how many owners were lost, the last included."""

    verdict: Verdict
    since_s: float = 0.0
    takeovers: int = 0


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

    @property
    def hold_s(self) -> float:
        """The lease of a claim whose answer goes out."""
        return self.delivery_s + _HAND_OVER_S + _EXPIRY_LATE_S


class Claims:
    """The ids that this process holds.  Touched only by the loop.

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

    def holds(self, request_id: str) -> bool:
        """Tell whether this process claimed the id and has not settled it."""
        return request_id in self._sure_until_s

    def is_sure(self, request_id: str) -> bool:
        """Tell whether nobody else can hold the id before what is sent now has arrived or never will."""
        return self._clock.mono_s() < self._sure_until_s.get(request_id, 0.0) - self._margin_s

    def held_ids(self) -> list[str]:
        """All ids held."""
        return list(self._sure_until_s)

    async def claim(self, asks: Sequence[tuple[str, int]]) -> list[Claimed]:
        """Claim pairs of id and attempt, none of them held already and none twice.  Raises ClaimsUnavailable."""
        until_s = self._clock.mono_s() + self._terms.lease_s
        marks, more = await self._call("claim", [i for i, _ in asks], [attempt for _, attempt in asks])
        past = iter(more)
        claimed = []
        for (request_id, attempt), mark in zip(asks, marks, strict=True):
            verdict = Verdict(mark)
            if verdict in {Verdict.MINE, Verdict.TAKEOVER}:
                self._sure_until_s[request_id] = until_s
                self._attempts[request_id] = attempt
            if verdict is Verdict.TAKEOVER:
                claimed.append(Claimed(verdict, int(next(past)) / 1000, int(next(past))))
            else:
                claimed.append(Claimed(verdict))
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

    async def ping(self) -> None:
        """See whether Redis answers.  Raises ClaimsUnavailable."""
        try:
            await self._client.ping()
        except (RedisError, OSError) as error:
            self.available = False
            raise ClaimsUnavailable(type(error).__name__) from error
        self.available = True

    async def _call(
        self, verb: str, ids: Sequence[str], more: Iterable[str | int], lease_s: float | None = None
    ) -> tuple[str, list[bytes]]:
        terms = self._terms
        if not ids:
            return "", []
        arguments = (
            *map(terms.keys.claim, ids),
            terms.keys.expiries(),
            verb,
            terms.owner,
            int((lease_s or terms.lease_s) * 1000),
            int(terms.remember_s * 1000),
            terms.keys.claim(""),
            *more,
        )
        try:
            try:
                answer = await self._client.evalsha(_SHA, len(ids) + 1, *arguments)
            except NoScriptError:
                answer = await self._client.eval(_SCRIPT, len(ids) + 1, *arguments)
        except (RedisError, OSError) as error:
            self.available = False
            raise ClaimsUnavailable(type(error).__name__) from error
        self.available = True
        return answer[0].decode(), answer[1:]
