"""The one clock, handed in.  Only a `__main__` builds `SystemClock`."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings that must not be mixed."""

    def wall_s(self) -> float:
        """Unix seconds: comparable across processes, may step."""

    def mono_s(self) -> float:
        """Seconds since an arbitrary start: for durations within one process."""


class SystemClock:
    """The machine's clock."""

    def wall_s(self) -> float:
        """Unix seconds."""
        return time.time()

    def mono_s(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()
