"""Work that goes on without claims while Redis is away (`gpu.without_redis = run`): at least once, not exactly once.

Two things stand in for a claim: the reply topic is read before an answer is given, and what Redis missed is told it
when it is back.
"""

from collections import deque
from collections.abc import Sequence

from gpu_consumers import lookup
from gpu_consumers.assignment import Entry
from gpu_consumers.claims import Claims, Place
from gpu_consumers.recall import made_s
from gpu_consumers.settings import GpuSettings
from topics.records import Reply

_OWED = 100_000
"""Answers that Redis was not told of.  Too small: in a long outage everything waits after all.  Too large: memory."""
_PORTION = 1000
"""Told in one call.  Too large: Redis stalls others meanwhile."""


class Unclaimed:
    """Touched only by the loop."""

    def __init__(self, settings: GpuSettings, claims: Claims) -> None:
        self._settings, self._claims = settings, claims
        self._owed: deque[tuple[str, Place]] = deque()

    async def first_answers(self, entries: Sequence[Entry]) -> dict[str, Reply]:
        """Answers that others gave to these ids.  Raises KafkaException."""
        for entry in entries:
            entry.since_s = made_s(entry, self._settings.dedupe_window_s)
        return await lookup.find(self._settings, entries) if entries else {}

    def owe(self, ended: Sequence[tuple[str, Place | None]]) -> bool:
        """Remember where these answers lie, None where an attempt ended without one; False when it is too much."""
        answered = [(request_id, place) for request_id, place in ended if place is not None]
        if len(self._owed) + len(answered) > _OWED:
            return False
        self._owed += answered
        self._claims.let_lapse(request_id for request_id, _ in ended)
        return True

    async def pay(self) -> None:
        """Tell Redis what it missed.  Raises ClaimsUnavailable."""
        while self._owed:
            portion = [self._owed[n] for n in range(min(_PORTION, len(self._owed)))]
            await self._claims.done(portion)
            for _ in portion:
                self._owed.popleft()
