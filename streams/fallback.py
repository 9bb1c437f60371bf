"""Decides in place of the ledger while Redis does not answer; holds this worker's part of the budgets."""

import math
from collections.abc import Callable, Mapping

from streams import metrics
from streams.limits import LiveLimits
from streams.policy import degrade, evidence
from streams.policy.admission import Admit, Terms, Verdict
from streams.policy.degrade import Limit, Local
from streams.policy.evidence import Field
from streams.settings import StreamsSettings
from topics.clock import Clock
from topics.records import Work

MAX_BUCKETS = 10_000
"""Local buckets at once.  Too small: more tenants than this have to wait for Redis."""

_Key = tuple[str, str]


class Fallback:
    """One for all agents of a worker, on their event loop; nothing waits between a look at a bucket and taking from it.

    Bound: in the first t seconds of an outage all workers together admit by `local_share` at most `local_ratio` of what
    flows into a budget in t + START_S seconds, and in no window more than `local_ratio` of what the budget itself would
    allow in it.  A paced budget: one request per worker more.
    """

    def __init__(
        self, settings: StreamsSettings, clock: Clock, share_ratio: Callable[[], float], limits: LiveLimits
    ) -> None:
        """`share_ratio`: this worker's landing partitions over all; over all workers they sum to at most 1."""
        self._settings, self._clock, self._share_ratio = settings.streams, clock, share_ratio
        self._limits = limits
        self._delays_s = settings.topics.defer_delays_s
        self._locals: dict[_Key, Local] = {}
        self._start_ratio = 1.0
        self._cleared_s = -math.inf
        self._is_over = True

    def decide(self, work: Work, asked: Terms) -> tuple[Verdict, Mapping[str, Field]]:
        """Decide by the class's mode; what is admitted is taken from the local buckets.  Also what was looked at."""
        now_s, ratio = self._clock.mono_s(), self._ratio()
        if self._is_over:
            self._begin(now_s, ratio)
        priority = work.request.priority
        mode: degrade.Mode = getattr(self._settings.degrade, priority.value)
        names = _names(work) if mode == "local_share" else ()
        if not self._has_room(names, now_s):
            mode, names = "closed", ()
        parts = {name: self._local(name, now_s, ratio) for name in names}
        looked_at = evidence.of_parts(mode, list(parts.values()))
        verdict = degrade.decide(mode, asked, list(parts.values()), self._delays_s)
        if isinstance(verdict, Admit):
            parts = {name: part.spend(asked.units) for name, part in parts.items()}
        self._locals.update(parts)
        metrics.DEGRADED_DECISIONS.labels(mode, type(verdict).__name__.lower()).inc()
        return verdict, looked_at

    def reset(self) -> None:
        """Redis is back.  What the next outage begins with is reckoned from what is left then."""
        self._is_over = True

    def share_changed(self) -> None:
        """Partitions came or went: what flowed in until now was by the share until now."""
        now_s, ratio = self._clock.mono_s(), self._ratio()
        self._locals = {name: self._local(name, now_s, ratio) for name in self._locals}

    def _begin(self, now_s: float, ratio: float) -> None:
        """Keep only what holds less than a new bucket: several short outages are not several starts."""
        again = {name: local.again(now_s) for name, local in self._locals.items()}
        self._locals = {name: local for name, local in again.items() if local.level_units < local.limit.start_units}
        self._start_ratio = ratio
        self._is_over = False

    def _has_room(self, names: tuple[_Key, ...], now_s: float) -> bool:
        """Whether the buckets can be held, if need be without the tenants' that hold as much as new ones would."""
        if self._with(names) <= MAX_BUCKETS:
            return True
        if now_s - self._cleared_s >= degrade.START_S:  # sooner there is little to find
            self._cleared_s = now_s
            self._locals = {
                name: local
                for name, local in self._locals.items()
                if name[0] != "tenant" or local.at(now_s, local.limit).level_units < local.limit.start_units
            }
        return self._with(names) <= MAX_BUCKETS

    def _with(self, names: tuple[_Key, ...]) -> int:
        return len(self._locals) + sum(name not in self._locals for name in names)

    def _ratio(self) -> float:
        """This worker's part of each budget now; a new bucket starts by the smallest since the outage began."""
        ratio = self._settings.degrade.local_ratio * min(1.0, max(0.0, self._share_ratio()))
        self._start_ratio = min(self._start_ratio, ratio)
        return ratio

    def _local(self, name: _Key, now_s: float, ratio: float) -> Local:
        bucket = self._limits.of(*name)
        whole = Limit(bucket.refill_units_per_s, bucket.cap_units, bucket.paced)
        local = self._locals.get(name) or Local.begun(whole.part(self._start_ratio), now_s)
        return local.at(now_s, whole.part(ratio))


def _names(work: Work) -> tuple[_Key, ...]:
    request = work.request
    return (
        ("global", "all"),
        ("pool", work.price.pool),
        ("tenant", request.tenant),
        ("class", request.priority.value),
    )
