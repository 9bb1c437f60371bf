"""Work that keeps a consumer in order, beside the path of requests: in a thread of its own and with its own budget."""

import threading
from collections.abc import Callable, Sequence

import structlog

from topics.clock import Clock

log = structlog.get_logger()


def rest_s(took_s: float, interval_s: float, ratio: float) -> float:
    """Pause after a round that took so long: at least the interval, and so long that rounds use `ratio` of the time."""
    return max(interval_s, took_s * (1 / ratio - 1))


class Maintenance:
    """Runs its jobs one after another, again and again.

    A job is called in the thread: what the loop owns it may read, and change only through the loop.
    """

    def __init__(self, jobs: Sequence[Callable[[], object]], interval_s: float, ratio: float, clock: Clock) -> None:
        self._jobs, self._interval_s, self._ratio, self._clock = jobs, interval_s, ratio, clock
        self._stopped = threading.Event()
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin the rounds, the first after a pause."""
        threading.Thread(target=self._run, name="maintenance", daemon=True).start()

    def stop(self) -> None:
        """End after the present job, however long that takes."""
        self._stopped.set()

    def _run(self) -> None:
        pause_s = self._interval_s
        try:
            while not self._stopped.wait(pause_s):
                began_s = self._clock.mono_s()
                for job in self._jobs:
                    if not self._stopped.is_set():
                        job()
                pause_s = rest_s(self._clock.mono_s() - began_s, self._interval_s, self._ratio)
        except BaseException as error:
            self.failure = error
            log.exception("maintenance_died", error=type(error).__name__)
