"""A clock that moves only when told to."""


class FakeClock:
    """Satisfies `topics.clock.Clock`; `advance` moves both readings."""

    def __init__(self, wall_s=1_700_000_000.0, mono_s=1_000.0):
        self._wall_s, self._mono_s = wall_s, mono_s

    def wall_s(self):
        return self._wall_s

    def mono_s(self):
        return self._mono_s

    def advance(self, seconds):
        self._wall_s += seconds
        self._mono_s += seconds
