"""Ids that were seen before: our own restart is carried on where it stopped, a second asker gets the first answer."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from confluent_kafka import KafkaException
from structlog import get_logger

from streams.apply import Writer
from streams.budgets import Redelivered
from streams.ledger_wire import hold_s
from streams.outbox import Outgoing
from streams.policy import admission
from streams.policy.admission import Admit, Reject
from streams.policy.verification import Refusal
from streams.settings import StreamsSettings
from topics import answers, codec
from topics.records import Reply, Work

_log = get_logger()
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    """Where the answer to an id would lie: a reply topic, and since when."""

    id: str
    topic: str
    since_s: float


class Repeats:
    """Finds first answers in the log, and builds what such records lead to."""

    def __init__(self, settings: StreamsSettings, writer: Writer) -> None:
        """`writer` builds the records."""
        self._settings, self._writer = settings, writer

    async def first_answers(self, places: Sequence[Place]) -> dict[str, Reply]:
        """The answers that lie in the log already, by id."""
        by_topic: dict[str, list[Place]] = defaultdict(list)
        for place in places:
            by_topic[place.topic].append(place)
        found: dict[str, Reply] = {}
        for topic, asked in by_topic.items():
            found |= await self._find({place.id for place in asked}, topic, min(place.since_s for place in asked))
        return found

    def is_on_its_way(self, standing: Redelivered, first: Reply | None) -> bool:
        """Whether another run of the record, perhaps still alive, may be about to answer it."""
        age_s = standing.ended_s
        return first is None and age_s is not None and age_s < hold_s(self._settings)

    def of_the_same(
        self, item: Work | Refusal, standing: Redelivered, first: Reply | None, *, is_cancelled: bool
    ) -> list[Outgoing]:
        """Carry on where an earlier run of the same record stopped.  A second copy on a lane is caught by its claim.

        The entry in the decision log is written in any case: the first may have died with its worker.
        """
        grounds, journal = {"again": standing.state}, self._writer.journal
        is_over = standing.state == "settled" or first is not None
        if isinstance(item, Refusal):  # if it was reserved, under other settings, the work on the lane gets the answer
            if standing.state != "finished":
                return []
            return [journal.refusal(item)] if is_over else self._writer.refusal(item)
        if standing.state == "finished":
            verdict = admission.CANCELLED if is_cancelled and not is_over else _verdict_of(standing.why)
            if is_over:
                return [journal.admission(item, verdict, grounds)]
            return self._writer.apply(item, verdict, grounds)
        work = _as_priced(item, standing)
        if is_over:
            return [journal.admission(work, Admit(), grounds)]
        return self._writer.apply(work, Admit(), grounds, unreserved=standing.unreserved)

    def of_another(self, item: Work | Refusal, first: Reply | None) -> list[Outgoing]:
        """Give a second asker the first answer, once it is there; another tenant never gets it."""
        if isinstance(item, Refusal):
            # Under an id that may be another tenant's it would look like the answer to theirs.
            is_own = first is not None and first.tenant == item.tenant
            placed = item if is_own else replace(item, id=codec.fallback_id(item.origin))
            return self._writer.refusal(placed, repeat=is_own)
        if first is None:
            return [self._writer.deferred(item, min(self._settings.topics.defer_delays_s))]
        if first.tenant not in {None, item.request.tenant}:
            return self._writer.apply(item, admission.ID_TAKEN, {"repeat": True})
        return [self._writer.repeated(item, first)]

    async def _find(self, ids: set[str], topic: str, since_s: float) -> dict[str, Reply]:
        while True:
            try:
                return await asyncio.to_thread(answers.find, self._settings, ids, topic, since_s)
            except KafkaException as error:
                _log.warning("answers_not_read", topic=topic, error=error.args[0].str(), doing="the batch waits")
                await asyncio.sleep(_RETRY_S)


def _as_priced(work: Work, standing: Redelivered) -> Work:
    """At the cost that was taken for it: its end is settled against that, and estimates may have changed since."""
    if standing.cost_units is None:
        return work
    price = msgspec.structs.replace(work.price, cost_units=standing.cost_units)
    return msgspec.structs.replace(work, price=price)


def _verdict_of(why: str | None) -> Reject:
    """The verdict that ended an id earlier."""
    if why is None:
        return admission.REFUSED_EARLIER
    try:
        return msgspec.json.decode(why, type=Reject)
    except msgspec.MsgspecError:
        return admission.REFUSED_EARLIER
