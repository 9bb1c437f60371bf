"""Answers to work that Redis may have forgotten, read from the log once for all that waits here."""

import asyncio
from collections.abc import Callable, Iterable

import structlog
from confluent_kafka import KafkaException

from gpu_consumers import lookup
from gpu_consumers.assignment import Entry, Recalled
from gpu_consumers.claims import Claims
from gpu_consumers.settings import GpuSettings
from topics.records import Reply

log = structlog.get_logger()


def made_s(entry: Entry, window_s: float) -> float:
    """When its work was first made, copies, retries and redeliveries of its request included.

    At most `window_s` before this record: an older time is some sender's, and would have the whole log read.
    """
    here_s = entry.fetched.timestamp_s
    first_s = min(here_s, entry.work.request.arrived_s, entry.work.admitted_s or here_s)
    return max(first_s, here_s - window_s)


class Recall:
    """Touched only by the loop.

    What one reading says of an entry stands until Redis loses its memory again: later answers are in the claims.
    """

    def __init__(self, settings: GpuSettings, claims: Claims, waiting: Callable[[], Iterable[Entry]]) -> None:
        """`waiting` are the entries that were not claimed yet."""
        self._settings, self._claims, self._waiting = settings, claims, waiting
        self._reading = asyncio.Lock()

    async def find(self, entries: list[Entry]) -> dict[str, Reply]:
        """Terminal replies by id to claimed entries that must be looked up; waits for a broker that is away."""
        async with self._reading:  # what waits for it may have been read with the one before
            unread = [entry for entry in entries if not self._is_read(entry)]
            beside = self._beside() if any(not entry.takeovers for entry in unread) else []
            memory = self._claims.memory
            found = await self._read([*unread, *beside]) if unread else {}
            for entry in (*unread, *beside):
                # Of one taken over only the time since its first claim was read.
                entry.recalled = Recalled(None if entry.takeovers else memory, found.get(entry.id))
        answers = {entry.id: entry.recalled.answer for entry in entries if entry.recalled is not None}
        return {request_id: answer for request_id, answer in answers.items() if answer is not None}

    def _is_read(self, entry: Entry) -> bool:
        """Whether an earlier reading says all: never of one that was taken over, whose last owner may have answered."""
        return not entry.takeovers and entry.recalled is not None and entry.recalled.memory == self._claims.memory

    def _beside(self) -> list[Entry]:
        """What waits and may be forgotten too: it would be read one by one otherwise."""
        window_s = self._settings.dedupe_window_s
        found = []
        for entry in self._waiting():
            first_s = made_s(entry, window_s)
            if self._claims.may_have_forgotten(first_s) and not self._is_read(entry):
                entry.since_s = first_s
                found.append(entry)
        return found

    async def _read(self, entries: list[Entry]) -> dict[str, Reply]:
        while True:
            try:
                return await lookup.find(self._settings, entries)
            except KafkaException as error:
                log.warning("lookup_failed", error=error.args[0].name(), ids=len(entries))
                await asyncio.sleep(self._settings.gpu.held_retry_s)
