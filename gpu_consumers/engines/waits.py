"""Waits for an engine's next item that end when the engine is closed."""

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from topics.errors import EngineError

_Item = TypeVar("_Item")


class Waits:
    """The waits of one engine; touched only by its loop.

    Closing a session or an engine can leave those who read from it waiting for ever: they are woken here.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._open: set[asyncio.Timeout] = set()

    async def next(self, items: AsyncGenerator[_Item, None]) -> _Item | None:
        """The next item, None at the end; raises a retryable error once closed."""
        try:
            if self.is_closed:
                raise TimeoutError  # noqa: TRY301 - the same end as of those who waited
            async with asyncio.timeout(None) as wait:
                self._open.add(wait)
                try:
                    return await anext(items, None)
                finally:
                    self._open.discard(wait)
        except TimeoutError as error:
            raise EngineError("the engine was closed", retryable=True) from error

    def close(self) -> None:
        """End all waits, and those to come."""
        self.is_closed = True
        for wait in self._open:
            wait.reschedule(asyncio.get_running_loop().time())
