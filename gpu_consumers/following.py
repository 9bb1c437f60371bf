"""A thread that follows a topic with a reader of its own."""

import threading
from collections.abc import Callable
from contextlib import closing

import structlog
from confluent_kafka import Consumer

from topics import clients
from topics.settings import Settings

log = structlog.get_logger()

POLL_S = 0.2
"""Longest wait of a turn for records.  Too large: the end of the process waits for it."""
_RETRY_S = 1.0


class Following:
    """Places the reader, again and again until that succeeds, and then takes turns with it until it is stopped."""

    def __init__(
        self, name: str, settings: Settings, place: Callable[[Consumer], bool], turn: Callable[[Consumer], None]
    ) -> None:
        """`place` is False while the broker does not answer; a `turn` takes about `POLL_S`."""
        self._name, self._settings, self._place, self._turn = name, settings, place, turn
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(4 * POLL_S)

    def pause(self) -> None:
        """Spend a turn without reading."""
        self._stopping.wait(POLL_S)

    def _run(self) -> None:
        try:
            with closing(clients.reader(self._settings)) as reader:
                while not self._stopping.is_set() and not self._place(reader):
                    self._stopping.wait(_RETRY_S)
                while not self._stopping.is_set():
                    self._turn(reader)
        except BaseException as error:
            self.failure = error
            log.exception("follower_died", follower=self._name, error=type(error).__name__)
