"""Promotion in virtual time: what `streams.promote` does with a broker, by the same policy."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from rampmeter.simulation.jobs import Job
from rampmeter.simulation.lanes import Partition
from streams.fleet import Fleet
from streams.policy import aging
from streams.policy.aging import Lane, Late, Sample, Verdict
from streams.settings import StreamsSettings
from topics.records import Priority, Tier

_LOOKS = 1000
"""Jobs looked at in one step, as in production."""

Copy = Callable[[Job, Partition, float], None]
"""Puts a job of this partition on an aged lane too."""


class _Old(NamedTuple):
    """Late work, how many are ahead of it on its partition, and that partition."""

    job: Job
    ahead: int
    partition: Partition


class Promoter:
    """Of one pool.  Invariant: a job is copied once."""

    def __init__(
        self, settings: StreamsSettings, pool: str, fleet: Fleet, partitions: list[Partition], copy: Copy
    ) -> None:
        self._streams, self._pool, self._fleet, self._copy = settings.streams, settings.pools[pool], fleet, copy
        self._name, self._partitions = pool, partitions
        self._count = len({partition.index for partition in partitions})
        self._aged = [partition for partition in partitions if partition.lane.tier is Tier.AGED]
        self._samples: tuple[Sample, ...] = ()
        section = settings.streams
        self._after_s = {p: section.aged_after_by_class.get(p, section.aged_after_s) for p in Priority}

    def step(self, now_s: float) -> None:
        """Copy what is late and not served sooner otherwise, oldest first within a class, the classes in turns."""
        sample = Sample(now_s, self._fleet.dispatched_units(self._name), {})
        self._samples = aging.within((*self._samples, sample), now_s, self._streams.aged_window_s)
        young_s = now_s - min(self._after_s.values())
        if not any(part.waiting and part.waiting[0].admitted_s <= young_s for part in self._partitions):
            return
        lines = {priority: self._line(priority, now_s) for priority in Priority}
        heads = {priority: head for priority, line in lines.items() if (head := next(line, None))}
        promoted_units, copied = aging.promoted_units(self._samples), dict.fromkeys(Priority, 0.0)
        for _ in range(_LOOKS):
            if not heads:
                break
            priority = aging.next_class(heads, promoted_units)
            old = heads.pop(priority)
            verdict = aging.decide(self._late(old, priority, sum(copied.values()), now_s))
            if verdict in {Verdict.RECORD_CAP, Verdict.COST_CAP}:
                break
            if verdict is Verdict.PROMOTE and old.job.started_s < 0:
                self._copy(old.job, old.partition, now_s)
                copied[priority] += old.job.ask.cost_units
                promoted_units[priority] += old.job.ask.cost_units
            if following := next(lines[priority], None):
                heads[priority] = following
        self._samples = (*self._samples[:-1], replace(self._samples[-1], promoted_units=copied))

    def _late(self, old: _Old, priority: Priority, copied_units: float, now_s: float) -> Late:
        """The inputs of the decision on one job."""
        job, length, units = old.job, old.job.asked.length, old.job.ask.cost_units
        lane, aged = Lane(Tier(priority), length), Lane(Tier.AGED, length)
        beside = {Lane(*part.lane) for part in self._partitions if part.waiting} | {lane, aged}
        aged_units = sum(
            one.ask.cost_units for part in self._aged if part.lane.length is length for one in part.waiting
        )
        units_per_s = self._fleet.capacity(self._name).units_per_s
        has_idle = self._fleet.has_room(self._name)
        room_units = aging.room_units(self._samples, self._pool.aged_ratio, has_idle=has_idle)
        lane_ratio, aged_ratio = aging.ratio(self._pool, lane, beside), aging.ratio(self._pool, aged, beside)
        return Late(
            age_s=now_s - job.admitted_s,
            threshold_s=self._after_s[priority],
            lane_wait_s=aging.wait_s(old.ahead * units * self._count, units, lane_ratio, units_per_s),
            aged_wait_s=aging.wait_s(aged_units, units, aged_ratio, units_per_s),
            room_records=self._streams.aged_backlog_records - sum(len(part.waiting) for part in self._aged),
            room_units=None if room_units is None else room_units - copied_units,
        )

    def _line(self, priority: Priority, now_s: float) -> Iterator[_Old]:
        until_s = now_s - self._after_s[priority]
        parts = [_old(part, until_s) for part in self._partitions if part.lane.tier is Tier(priority)]
        return heapq.merge(*parts, key=lambda old: old.job.admitted_s)


def _old(partition: Partition, until_s: float) -> Iterator[_Old]:
    for ahead, job in enumerate(islice(tuple(partition.waiting), _LOOKS)):
        if job.admitted_s > until_s:
            return
        if not job.copies and job.started_s < 0:
            yield _Old(job, ahead, partition)
