"""Promotion: work that waits longer than its class may gets a copy in the aged tier; its class stays what it was.

Looks only at what the consumers have not committed and what is old enough, so it costs nothing while nothing waits: a
delay line that skips what was served in time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from confluent_kafka import KafkaException
from structlog import get_logger

from streams import metrics
from streams.apply import Writer
from streams.budgets import Budgets
from streams.fleet import Fleet
from streams.late import Lanes, Place, Span, Waiting
from streams.outbox import Outgoing
from streams.policy import aging
from streams.policy.aging import Lane, Late, Sample, Verdict
from streams.settings import StreamsSettings
from topics.clock import Clock
from topics.records import Length, Priority, Tier

_log = get_logger()
_ROUNDS = 10
"""Looks in one step, while all that was chosen turns out to be claimed."""
_LOOKS = 1000
"""Records read in one look; the next step goes on."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Work to be promoted, and what that was decided on."""

    waiting: Waiting
    late: Late

    @property
    def units(self) -> float:
        return self.waiting.work.price.cost_units

    def inputs(self) -> dict[str, float | int | str | bool | None]:
        """For the decision log: `aging.decide` says the same of them again."""
        lane = self.waiting.span.lane
        return {**asdict(self.late), "lane": f"{lane.tier}.{lane.length}", "cost_units": self.units}


@dataclass(frozen=True, slots=True)
class _View:
    """The pool at one look."""

    now_s: float
    spans: Sequence[Span]
    ends: Mapping[Place, int]
    """Where late work ends, of the partitions that have some."""
    waiting: frozenset[Lane]
    aged_records: Mapping[Length, int]
    units_per_s: float | None
    room_records: int
    room_units: float | None


class Promoter:
    """One pool's promotions.  Runs in one process at a time; a second would do no harm, since marks are atomic."""

    def __init__(
        self,
        settings: StreamsSettings,
        pool: str,
        clock: Clock,
        budgets: Budgets,
        writer: Writer,
        send: Callable[[Sequence[Outgoing]], Awaitable[None]],
        fleet: Fleet,
    ) -> None:
        """All but the pool is shared by the process; opens a reader that never joins the consumers' group.

        `send` returns when the broker has the records, and raises when it will never take one.
        """
        self._settings, self._pool, self._clock, self._fleet = settings, pool, clock, fleet
        self._budgets, self._writer, self._send = budgets, writer, send
        self._lanes = Lanes(settings, pool)
        self._samples: tuple[Sample, ...] = ()
        section = settings.streams
        self._after_s = {p: section.aged_after_by_class.get(p, section.aged_after_s) for p in Priority}

    async def step(self) -> int:
        """Promote what is late and not served sooner otherwise, as the caps allow; the number of copies made."""
        for _ in range(_ROUNDS):
            chosen = await asyncio.to_thread(self._choose)
            promoted = await self._promote(chosen) if chosen else 0
            if promoted or not chosen:
                return promoted
        return 0

    def close(self) -> None:
        """Close the reader."""
        self._lanes.close()

    async def _promote(self, chosen: Sequence[_Chosen]) -> int:
        """Copy those that nobody claimed or promoted; one Redis call tells."""
        fresh = await self._budgets.promotable([item.waiting.work.request.id for item in chosen])
        copied = [item for item, is_fresh in zip(chosen, fresh, strict=True) if is_fresh]
        records = [
            record
            for item in copied
            for record in self._writer.promoted(
                item.waiting.work, item.waiting.value, item.waiting.span.lane.length, item.inputs()
            )
        ]
        if records:
            await self._send(records)
        self._lanes.looked_at([item.waiting for item in chosen])
        units: dict[Priority, float] = {}
        for item in copied:
            priority = Priority(item.waiting.span.lane.tier)
            units[priority] = units.get(priority, 0.0) + item.units
        self._samples = (*self._samples[:-1], replace(self._samples[-1], promoted_units=units))
        metrics.PROMOTED.labels(self._pool).inc(len(copied))
        metrics.UNPROMOTED.labels(self._pool, "claimed").inc(len(chosen) - len(copied))
        return len(copied)

    def _choose(self) -> list[_Chosen]:
        """Blocking: what to promote now.  Nothing when a reading fails."""
        try:
            view = self._look()
            if not view.ends:
                return []
            if view.room_records <= 0 or (view.room_units is not None and view.room_units <= 0):
                reason = Verdict.RECORD_CAP if view.room_records <= 0 else Verdict.COST_CAP
                metrics.UNPROMOTED.labels(self._pool, reason).inc()
                return []
            return self._pick(view)
        except KafkaException as error:
            _log.warning("promotion_skipped", pool=self._pool, error=error.args[0].str())
            return []

    def _look(self) -> _View:
        section, fleet, pool = self._settings.streams, self._fleet, self._settings.pools[self._pool]
        now_s = self._clock.wall_s()
        spans = [span for span in self._lanes.spans() if span.waiting() > 0]
        cutoffs_s = {Tier(priority): now_s - after_s for priority, after_s in self._after_s.items()}
        ends = self._lanes.late_ends([span for span in spans if span.lane.tier is not Tier.AGED], cutoffs_s)
        sample = Sample(now_s, fleet.dispatched_units(self._pool), {})
        self._samples = aging.within((*self._samples, sample), now_s, section.aged_window_s)
        aged = {
            length: sum(span.waiting() for span in spans if span.lane == Lane(Tier.AGED, length)) for length in Length
        }
        return _View(
            now_s=now_s,
            spans=spans,
            ends=ends,
            waiting=frozenset(span.lane for span in spans),
            aged_records=aged,
            units_per_s=fleet.capacity(self._pool).units_per_s,
            room_records=section.aged_backlog_records - sum(aged.values()),
            room_units=aging.room_units(self._samples, pool.aged_ratio, has_idle=fleet.has_room(self._pool)),
        )

    def _pick(self, view: _View) -> list[_Chosen]:
        """Oldest first within a class, the classes in turns, until a cap is reached."""
        lines = {priority: self._line(view, priority) for priority in Priority}
        heads = {priority: head for priority, line in lines.items() if (head := next(line, None))}
        promoted_units = aging.promoted_units(self._samples)
        chosen: list[_Chosen] = []
        for _ in range(_LOOKS):
            if not heads:
                break
            priority = aging.next_class(heads, promoted_units)
            waiting = heads.pop(priority)
            late = self._late(view, waiting, chosen)
            verdict = aging.decide(late)
            if verdict is Verdict.PROMOTE:
                chosen.append(_Chosen(waiting, late))
                promoted_units[priority] += waiting.work.price.cost_units
            else:
                metrics.UNPROMOTED.labels(self._pool, verdict).inc()
            if verdict in {Verdict.RECORD_CAP, Verdict.COST_CAP}:
                break
            if following := next(lines[priority], None):
                heads[priority] = following
        return chosen

    def _line(self, view: _View, priority: Priority) -> Iterator[Waiting]:
        """The late work of a class, without what its lane serves sooner than a copy."""
        parts = [
            (span, self._start(view, span), view.ends[span.place])
            for span in view.spans
            if span.lane.tier is Tier(priority) and span.place in view.ends
        ]
        return self._lanes.oldest_first([part for part in parts if part[1] < part[2]])

    def _start(self, view: _View, span: Span) -> int:
        length = span.lane.length
        mean_units = self._lanes.mean_units.get(length)
        if mean_units is None or view.units_per_s is None or not self._fleet.is_served(*span.place):
            return span.first
        lane_ratio, aged_ratio = self._ratios(view, span.lane)
        aged_units = view.aged_records[length] * mean_units
        records = aging.not_worth_records(aged_units, mean_units, lane_ratio, aged_ratio)
        return span.first + records // self._partitions

    def _late(self, view: _View, waiting: Waiting, chosen: Sequence[_Chosen]) -> Late:
        """The inputs of the decision on one record, after those chosen before it."""
        span, length, units = waiting.span, waiting.span.lane.length, waiting.work.price.cost_units
        mean_units = self._lanes.mean_units[length]
        ahead_units = span.waiting(until=waiting.offset) * mean_units * self._partitions
        aged_units = view.aged_records[length] * mean_units
        aged_units += sum(c.units for c in chosen if c.waiting.span.lane.length is length)
        lane_ratio, aged_ratio = self._ratios(view, span.lane)
        is_served = self._fleet.is_served(*span.place)
        room_units = view.room_units
        return Late(
            age_s=view.now_s - waiting.appended_s,
            threshold_s=self._after_s[Priority(span.lane.tier)],
            lane_wait_s=aging.wait_s(ahead_units, units, lane_ratio, view.units_per_s) if is_served else None,
            aged_wait_s=aging.wait_s(aged_units, units, aged_ratio, view.units_per_s),
            room_records=view.room_records - len(chosen),
            room_units=None if room_units is None else room_units - sum(c.units for c in chosen),
        )

    @property
    def _partitions(self) -> int:
        """Of each lane; what waits on one partition waits on the others alike."""
        return self._settings.pools[self._pool].lane_partitions

    def _ratios(self, view: _View, lane: Lane) -> tuple[float, float]:
        """What the lane and the aged lane of its length get of the dispatched cost, both waiting."""
        pool, aged = self._settings.pools[self._pool], Lane(Tier.AGED, lane.length)
        waiting = view.waiting | {lane, aged}
        return aging.ratio(pool, lane, waiting), aging.ratio(pool, aged, waiting)
