"""Sends what was decided, until the broker has it, and each answer at most once."""

import asyncio
from collections.abc import Sequence

from structlog import get_logger

from streams.apply import Writer
from streams.budgets import Ask, Budgets, BudgetsUnavailable, Redelivered
from streams.ledger_wire import hold_s
from streams.outbox import Outgoing, Sends, Undelivered
from streams.repeats import Place, Repeats
from streams.settings import StreamsSettings
from topics import codec
from topics.errors import ConfigError
from topics.records import Reply

_log = get_logger()
_LOOK_S = 1.0
"""Too small: load on Redis.  Too large: an answer is late by as much."""


class Sending:
    """One for all that a worker sends, on its event loop.

    An answer that the broker did not take in time may lie in the log all the same, or still arrive there; and once this
    worker is given up, whoever has its partitions answers in its place.  So it is sent again only when nothing of it
    can be on its way, the ledger lets no other run answer, and the log has none.
    """

    def __init__(
        self, settings: StreamsSettings, outbox: Sends, writer: Writer, budgets: Budgets, repeats: Repeats
    ) -> None:
        """`budgets` tells who may answer, `repeats` what the log has."""
        self._under_way_s = hold_s(settings) - settings.streams.delivery_s
        self._outbox, self._writer, self._budgets, self._repeats = outbox, writer, budgets, repeats

    async def send(self, records: Sequence[Outgoing]) -> None:
        """Send; an answer that its reply topic will never take is dead-lettered by reference.

        Raises ConfigError when a topic of our own refuses a record: going on would lose it.
        """
        left = list(records)
        while left:
            undelivered = await self._outbox.deliver(left)
            unsure = [lost.record for lost in undelivered if lost.is_unsure]
            left = self._letters([lost for lost in undelivered if not lost.is_unsure])
            left += await self._unanswered(unsure)

    def _letters(self, refused: Sequence[Undelivered]) -> list[Outgoing]:
        letters = [self._writer.unanswerable(lost.record, lost.reason) for lost in refused]
        if any(letter is None for letter in letters):
            raise ConfigError([f"topic {lost.record.topic} takes no records: {lost.reason}" for lost in refused])
        return [letter for letter in letters if letter is not None]

    async def _unanswered(self, unsure: Sequence[Outgoing]) -> list[Outgoing]:
        """Those of them that are this run's to give, once that is known of each."""
        waiting = [(record, _reply_in(record)) for record in unsure]
        missing: list[Outgoing] = []
        pause_s = self._under_way_s
        while waiting:
            _log.warning("answers_unsure", records=len(waiting), doing="they are looked up, and sent again if need be")
            await asyncio.sleep(pause_s)
            pause_s = _LOOK_S
            given = await self._given_by_others(waiting)
            due = [(record, reply) for record, reply in waiting if reply.id not in given]
            waiting = [(record, reply) for record, reply in waiting if reply.id in given]
            found = await self._repeats.first_answers(
                [Place(reply.id, record.topic, reply.timing.arrived_s) for record, reply in due if reply.timing]
            )
            missing += [record for record, reply in due if reply.repeat or reply.id not in found]
        return missing

    async def _given_by_others(self, waiting: Sequence[tuple[Outgoing, Reply]]) -> set[str]:
        """Ids that another run may be answering now."""
        asks = [
            Ask(reply.id, reply.origin, record.topic, reply.tenant or "", only_asks=True)
            for record, reply in waiting
            if reply.origin is not None and not reply.repeat
        ]
        try:
            standings = await self._budgets.reserve(asks, {})
        except BudgetsUnavailable:  # then the log alone says
            return set()
        return {
            ask.id
            for ask, standing in zip(asks, standings, strict=True)
            if isinstance(standing, Redelivered) and self._repeats.is_on_its_way(standing, None)
        }


def _reply_in(record: Outgoing) -> Reply:
    reply = codec.decode_answer(record.value or b"")
    assert isinstance(reply, Reply)  # noqa: S101 - admission streams nothing
    return reply
