"""Waits for an engine's next item that end when the engine does."""

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from topics.errors import EngineError

_Item = TypeVar("_Item")


class Waits:
    """The waits of one engine; touched only by its loop.

    The end of a session or of an engine can leave those who read from it waiting for ever: they are woken here.
    """

    def __init__(self) -> None:
        self._open: set[asyncio.Timeout] = set()
        self._end: tuple[str, bool] | None = None  # detail and whether fatal; the first one stays

    @property
    def is_closed(self) -> bool:
        """Whether the engine has ended."""
        return self._end is not None

    async def next(self, items: AsyncGenerator[_Item, None]) -> _Item | None:
        """The next item, None at the end; raises `error()` once closed."""
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
            raise self.error() from error

    def close(self, detail: str = "the engine was closed", *, fatal: bool = False) -> None:
        """End all waits, and those to come."""
        self._end = self._end or (detail, fatal)
        for wait in self._open:
            wait.reschedule(asyncio.get_running_loop().time())

    def error(self) -> EngineError:
        """Why the engine ended; another one may take the job."""
        detail, fatal = self._end or ("the engine gave no more", False)
        return EngineError(detail, retryable=True, fatal=fatal)
