"""Reads one source again and again in a thread of its own, and knows when that last succeeded."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from confluent_kafka import KafkaException

from topics.clock import Clock
from topics.errors import PipelineError

T = TypeVar("T")
Read = Callable[[], T]
Open = Callable[[], AbstractContextManager[Read[T]]]
"""Opens what is needed to read; while that fails it is tried again."""
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """The last good reading of a source, and what is wrong with it now."""

    name: str
    value: T | None = None
    """None until it was read once."""
    good_s: float | None = None
    """When `value` was read, by the wall clock."""
    problem: str | None = "not read yet"


class Watch(Generic[T]):
    """One source.  Its thread alone writes `seen`, as a whole, so that readers need no lock."""

    def __init__(self, name: str, open_source: Open[T], clock: Clock, period_s: float) -> None:
        self.seen: Seen[T] = Seen(name)
        self._open, self._clock, self._period_s = open_source, clock, period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"console-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """End after the reading in hand."""
        self._stop.set()

    def join(self) -> None:
        """Wait for the end, for a bounded time: a reading of a broker that is away may take longer."""
        self._thread.join(_STOP_S)

    @property
    def is_alive(self) -> bool:
        """Whether it still reads; a fault in our own code ends it."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._open() as read:
                    while not self._stop.is_set():
                        self._look(read)
                        self._stop.wait(self._period_s)
            except (PipelineError, KafkaException) as error:
                self._note(said(error))
                self._stop.wait(self._period_s)

    def _look(self, read: Read[T]) -> None:
        try:
            value = read()
        except (PipelineError, KafkaException) as error:
            self._note(said(error))
        else:
            self.seen = Seen(self.seen.name, value, self._clock.wall_s(), None)

    def _note(self, problem: str) -> None:
        self.seen = Seen(self.seen.name, self.seen.value, self.seen.good_s, problem)


def said(error: Exception) -> str:
    """A failure in one line."""
    fault = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    return str(fault).partition("\n")[0]


def now(seen: Seen[T], now_s: float, late_s: float) -> Seen[T]:
    """The same, with a problem when its thread has brought nothing for `late_s`: a call of it stands still."""
    if seen.problem is None and seen.good_s is not None and now_s - seen.good_s > late_s:
        return Seen(seen.name, seen.value, seen.good_s, f"no reading for {now_s - seen.good_s:.0f} s")
    return seen
