"""Threads that follow a topic: without one the worker would decide for ever by what it knew when the thread ended."""

import os
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing

from confluent_kafka import Consumer, Message, TopicPartition
from structlog import get_logger

from streams.settings import StreamsSettings
from topics import clients, process

_POLL_S = 0.2
_BATCH = 1000
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


class Follower(ABC):
    """Reads some partitions from these places on, in a thread of its own."""

    def __init__(self, name: str, settings: StreamsSettings, places: Sequence[TopicPartition]) -> None:
        """`start` begins to follow."""
        self._settings, self._places = settings, places
        self._running = True
        self._thread = thread(name, self._follow)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._running = False
        if self._thread.is_alive():
            self._thread.join(timeout=10 * _POLL_S)

    def _begin(self, reader: Consumer) -> None:  # noqa: B027 - most have nothing to ask
        """Ask what is to be known before the first record, in the thread."""

    @abstractmethod
    def _read(self, message: Message) -> None:
        """Take in a record, or the word that there is none, in the thread."""

    def _follow(self) -> None:
        with closing(clients.reader(self._settings)) as reader:
            self._begin(reader)
            reader.assign(list(self._places))
            while self._running:
                for message in reader.consume(_BATCH, _POLL_S):
                    self._read(message)
