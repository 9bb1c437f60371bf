"""What the decision log says of ids that Redis may have forgotten.

A worker that dies leaves records that it has decided and not committed.  Its successor finds them in the ledger, unless
Redis lost its memory meanwhile: then only the log knows that they were admitted, answered or settled.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from structlog import get_logger

from streams import metrics
from streams.budgets import Redelivered
from streams.cases import Case
from streams.memory import Memory
from streams.settings import StreamsSettings
from topics import clients, codec, tail
from topics.clock import Clock
from topics.records import Decision, Usage

_log = get_logger()
_SKEW_S = 5.0
"""How far the clocks of Redis, the broker and other workers may be apart.  Too small: what was decided before a loss is
decided again.  Too large: what was not is looked up in vain."""
_READ_LIMIT_S = 30.0
_RETRY_S = 0.5
_KEPT_S = 60.0
"""How long a reading is kept unused.  Too small: what comes late is read again.  Too large: memory, about 200 bytes for
each decision of the window."""
_FURTHER_S = 30.0
"""Read beyond what is asked, since the next batch may ask it.  Too small: several readings.  Too large: longer ones."""
_ENDING = frozenset({"admit", "reject"})
_FIRST = frozenset({"admission", "verification"})


@dataclass(frozen=True, slots=True)
class Decided:
    """How a landing record was decided, and when."""

    is_admitted: bool
    at_s: float
    cost_units: float = 0.0
    is_unreserved: bool = False
    """It was admitted while Redis was away: nothing was taken from a budget."""


@dataclass(slots=True)
class Told:
    """What the log tells from a time on.  Of several entries of a record the first counts: the others repeat it."""

    decided: dict[tuple[str, str], Decided] = field(default_factory=dict)
    """By id and origin."""
    settled: set[tuple[str, int | None]] = field(default_factory=set)
    """Ids; beside those whose attempt was charged and tried again, the attempt."""

    def note(self, decision: Decision) -> None:
        """Take in an entry."""
        inputs, identity = decision.inputs, decision.id
        origin = inputs.get("origin")
        if decision.stage in _FIRST and decision.verdict in _ENDING and isinstance(origin, str):
            units = inputs.get("cost_units")
            first = Decided(
                decision.verdict == "admit",
                decision.at_s,
                float(units) if isinstance(units, int | float) else 0.0,
                bool(inputs.get("degraded")),
            )
            self.decided.setdefault((identity, origin), first)
        elif decision.stage == "settlement":
            attempt = inputs.get("attempt")
            self.settled.add((identity, int(attempt) if inputs.get("partial") and isinstance(attempt, int) else None))


@dataclass(frozen=True, slots=True)
class _Kept:
    unsure: tuple[float, float]
    since_s: float
    told: Told


class Recall:
    """One for all agents of a worker, on their event loop.

    What is known of an id counts only when the ledger does not know it.  Nothing is read in good times: only what is
    older than the ledger's memory is in question, or, while that is unknown, what is older than this worker's
    partitions.
    """

    def __init__(self, settings: StreamsSettings, clock: Clock) -> None:
        """No partition has come yet."""
        self._settings, self._clock = settings, clock
        self._taken_s = clock.wall_s()
        self._kept: _Kept | None = None
        self._used_s = -math.inf
        self._reading = asyncio.Lock()

    def partitions_came(self) -> None:
        """What was read from them before may have been decided by another worker, or by this one."""
        self._taken_s = self._clock.wall_s()

    async def look_up(self, cases: Iterable[Case], memory: Memory | None) -> None:
        """Tell those cases that were admitted or refused already, as far as `memory` may lack it."""
        until_s = (self._taken_s if memory is None else memory.since_s) + _SKEW_S
        unsure = [case for case in cases if case.recalled is None and case.pending.arrived_s <= until_s]
        told = await self._told([case.pending.arrived_s for case in unsure], until_s)
        for case in unsure:
            decided = told.decided.get((case.id, case.ask.origin.place))
            if decided is not None:
                case.recall(self._as_redelivered(decided))
                metrics.RECALLED.labels("decided").inc()

    async def settled(self, usages: Sequence[Usage], memory: Memory) -> list[bool]:
        """Which of these were charged already, as far as `memory` may lack it."""
        until_s = memory.since_s + _SKEW_S
        told = await self._told([usage.finished_s for usage in usages if usage.finished_s <= until_s], until_s)
        known = [usage.finished_s <= until_s and _key(usage) in told.settled for usage in usages]
        metrics.RECALLED.labels("settled").inc(sum(known))
        return known

    def _as_redelivered(self, decided: Decided) -> Redelivered:
        if decided.is_admitted:
            units, unreserved = decided.cost_units, decided.is_unreserved
            return Redelivered("reserved", decided.at_s, cost_units=units, unreserved=unreserved)
        return Redelivered("finished", decided.at_s, ended_s=self._clock.wall_s() - decided.at_s)

    async def _told(self, times_s: Sequence[float], until_s: float) -> Told:
        now_s = self._clock.mono_s()
        since_s = min(times_s, default=None)
        if since_s is None:
            if now_s - self._used_s > _KEPT_S:
                self._kept = None
            return Told()
        self._used_s = now_s
        # The ledger forgets by then too; an older time is some sender's, and would have the whole log read.
        since_s = max(since_s, self._clock.wall_s() - self._settings.dedupe_window_s) - _SKEW_S
        async with self._reading:
            unsure = until_s, self._taken_s
            kept = self._kept
            if kept is None or kept.unsure != unsure or since_s < kept.since_s:
                told = await self._read(since_s - _FURTHER_S)
                kept = self._kept = _Kept(unsure, since_s - _FURTHER_S, told)
            return kept.told

    async def _read(self, since_s: float) -> Told:
        while True:
            try:
                return await asyncio.to_thread(read, self._settings, since_s)
            except KafkaException as error:
                _log.warning("decisions_not_read", error=error.args[0].str(), doing="the batch waits")
                await asyncio.sleep(_RETRY_S)


def read(settings: StreamsSettings, since_s: float) -> Told:
    """All that the log tells since then, up to its end as it is now.

    Blocking.  Raises KafkaException when the broker does not answer: unknown is not "undecided".
    """
    told = Told()
    for decision in _decisions(settings, since_s):
        if decision.shadow == settings.streams.shadow:
            told.note(decision)
    return told


def _decisions(settings: StreamsSettings, since_s: float) -> Iterator[Decision]:
    topic = settings.topic("decisions")
    with contextlib.closing(clients.reader(settings)) as reader:
        asked = [clients.at(topic, number, since_s) for number in tail.partitions(reader, topic, _READ_LIMIT_S)]
        for message in tail.until_ends(reader, tail.starts(reader, asked, _READ_LIMIT_S), _READ_LIMIT_S):
            with contextlib.suppress(*codec.UNREADABLE):  # a foreign record decides nothing
                yield codec.decode_decision(message.value() or b"")


def _key(usage: Usage) -> tuple[str, int | None]:
    return usage.id, usage.attempt if usage.partial else None
