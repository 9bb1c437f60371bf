"""Threads that follow a topic: without one the worker would decide for ever by what it knew when the thread ended."""

import os
import threading
import traceback
from collections.abc import Callable

from structlog import get_logger

from topics import process

_log = get_logger()


def thread(name: str, follow: Callable[[], None]) -> threading.Thread:
    """A thread, not yet started, that runs `follow`; a failure of it is a bug and ends the process."""

    def run() -> None:
        try:
            follow()
        except Exception as error:  # noqa: BLE001 - the process ends with it
            # The message stays out: it may quote the record.
            where = "".join(traceback.format_tb(error.__traceback__))
            _log.error("follower_failed", follower=name, error=type(error).__name__, where=where)
            os._exit(process.EXIT_BUG)

    return threading.Thread(target=run, name=name, daemon=True)
