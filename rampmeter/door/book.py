"""What became of the requests that came through a door: places of their answers in the log, never the answers."""

import asyncio
import threading
from collections import OrderedDict

from rampmeter.reading import Missing, Picker
from topics import answers
from topics.records import Origin, Reply
from topics.settings import Settings

MARK = b"door:"
"""At the beginning of the correlation of each request from a door."""


class Book:
    """The last so many requests: None while one is open, else where its first terminal reply lies.

    Written by the loop (`begin`) and the thread that reads replies (`note`), under one lock.  A door that starts reads
    the last minutes of its reply topic again, and so knows the answers to what other doors took.
    """

    def __init__(self, settings: Settings, size: int) -> None:
        self._picker, self._size = Picker(settings), size
        self._reading = asyncio.Lock()
        self._lock = threading.Lock()
        self._places: OrderedDict[str, Origin | None] = OrderedDict()

    def begin(self, request_id: str) -> None:
        """It is on its way."""
        self._put(request_id, None)

    def note(self, reply: Reply, correlation: bytes, place: Origin) -> None:
        """It has ended, if it came through a door; the first answer counts."""
        if correlation.startswith(MARK) and not reply.repeat:
            self._put(correlation.removeprefix(MARK).rpartition(b".")[0].decode(errors="replace"), place)

    def knows(self, request_id: str) -> bool:
        """Whether it came through this door, or was answered to another one."""
        with self._lock:
            return request_id in self._places

    async def reply(self, request_id: str) -> Reply | None:
        """Its terminal reply, read from the log; None while there is none, or none any more."""
        with self._lock:
            place = self._places.get(request_id)
        if place is None:
            return None
        async with self._reading:  # the picker serves one at a time
            try:
                message = await asyncio.to_thread(self._picker.one, place)
            except Missing:
                return None
        found = answers.read(message.value())
        return found if isinstance(found, Reply) else None

    def close(self) -> None:
        """Leave the broker."""
        self._picker.close()

    def _put(self, request_id: str, place: Origin | None) -> None:
        with self._lock:
            if self._places.get(request_id) is None:
                self._places[request_id] = place
            while len(self._places) > self._size:
                self._places.popitem(last=False)
