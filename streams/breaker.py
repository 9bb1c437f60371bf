"""Whether Redis is asked at all: open after the first call that failed or came too late, until one was in time."""

import re
from collections.abc import Callable

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from structlog import get_logger

from streams import metrics
from streams.settings import Degrade
from topics.clock import Clock

_log = get_logger()
_AWAY = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OutOfMemoryError, OSError)
_REFUSING = ("NOREPLICAS", "MISCONF", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "LOADING", "NOAUTH", "READONLY", "OOM")
"""How a server's error begins that takes no writes for now, also inside a script."""
_REFUSING_WORD = re.compile(rf"\b({'|'.join(_REFUSING)})\b")


def is_away(error: BaseException) -> bool:
    """Whether the server is away or takes no writes; any other error is a bug of ours."""
    return isinstance(error, _AWAY) or (
        isinstance(error, ResponseError) and _REFUSING_WORD.search(str(error)) is not None
    )


class Breaker:
    """Written by whoever has just asked Redis, all on one event loop; read before asking.

    While it is open, admission asks nothing, so that only the first call of an outage waits for its timeout.
    """

    def __init__(self, clock: Clock, degrade: Degrade) -> None:
        """Start closed: an outage is first seen by a call."""
        self._clock = clock
        self._timeout_s = degrade.timeout_s
        self._opened_s: float | None = None
        self._on_close: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        """Whether Redis did not answer in time when it was last asked."""
        return self._opened_s is not None

    def on_close(self, act: Callable[[], None]) -> None:
        """Call `act` whenever Redis is back."""
        self._on_close.append(act)

    def note(self, ok: bool) -> None:  # noqa: FBT001 - the outcome is all that there is to say
        """Note how a call ended; `ok` when it was answered within `degrade.timeout_s`."""
        if ok:
            self._close()
        else:
            self._open()

    def _open(self) -> None:
        metrics.note("redis", available=False)
        metrics.DEGRADED.set(1)
        if self._opened_s is None:
            self._opened_s = self._clock.mono_s()
            _log.warning("redis_degraded", timeout_s=self._timeout_s, doing="each class by its degrade policy")

    def _close(self) -> None:
        metrics.note("redis", available=True)
        metrics.DEGRADED.set(0)
        if self._opened_s is None:
            return
        open_s = self._clock.mono_s() - self._opened_s
        self._opened_s = None
        _log.info("redis_restored", open_s=round(open_s, 3))
        for act in self._on_close:
            act()
