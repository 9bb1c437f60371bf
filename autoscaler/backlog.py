"""What waits on a pool's lanes: records, cost and age, from offsets and the records at the heads of the queues.

A reading is complete or it is an error: no number is made of a part of the partitions.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition

from autoscaler.heads import Head, HeadReader, Place
from autoscaler.policy import rate
from topics import catalog, clients, offset_map
from topics.clock import Clock
from topics.errors import LagUnavailable
from topics.records import Length, Tier
from topics.settings import Settings

GONE_S = 60.0
"""A group that had commits and has none is believed after it.  Too small: a coordinator that has not yet read what it
must know makes a backlog of all that was ever done.  Too large: after a group was deleted its work waits as long."""
COST_STALE_S = 5.0
"""The mean cost of a lane that never waits is looked at this often while records pass."""


@dataclass(frozen=True, slots=True)
class LaneBacklog:
    """One lane topic of a pool.  An empty lane has age and cost 0."""

    tier: Tier
    length: Length
    topic: str
    lag_records: int
    cost_units: float
    oldest_age_s: float
    appended_records: int
    """End offsets, summed: only differences mean anything."""
    mean_units: float | None
    """Absent until a record of the lane was read."""
    units_by_partition: tuple[float, ...] = ()
    """The parts of `cost_units`."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """A complete reading of a pool: what is on its lanes and not finished, running work included."""

    pool: str
    lanes: tuple[LaneBacklog, ...]

    @property
    def lag_records(self) -> int:
        """Unfinished records."""
        return sum(lane.lag_records for lane in self.lanes)

    @property
    def cost_units(self) -> float:
        """Their cost."""
        return sum(lane.cost_units for lane in self.lanes)

    @property
    def units_by_place(self) -> tuple[tuple[float, ...], ...]:
        """The cost by partition number and tier, both lengths together."""
        partitions = range(max((len(lane.units_by_partition) for lane in self.lanes), default=0))
        return tuple(
            tuple(sum(lane.units_by_partition[p] for lane in self.lanes if lane.tier is tier) for tier in Tier)
            for p in partitions
        )

    @property
    def oldest_age_s(self) -> float:
        """How long the oldest of them has been on its lane."""
        return max((lane.oldest_age_s for lane in self.lanes), default=0.0)


@dataclass(frozen=True, slots=True)
class _Span:
    """The unfinished part of a partition: from `first` to before `end`, less what is finished in between."""

    first: int
    end: int
    lag_records: int


@dataclass(slots=True)
class _Cost:
    mean_units: float
    read_s: float


class BacklogReader:
    """Reads backlogs of pools; remembers mean costs and heads between readings.  For one thread; never commits."""

    def __init__(self, settings: Settings, clock: Clock, timeout_s: float) -> None:
        self._settings, self._clock, self._timeout_s = settings, clock, timeout_s
        self._heads = HeadReader(settings, clock, timeout_s)
        self._groups: dict[str, Consumer] = {}
        self._costs: dict[str, _Cost] = {}
        self._appended: dict[str, int] = {}
        self._committed: dict[str, set[Place]] = {}
        """By pool, where its group had commits."""
        self._gone_s: dict[str, float] = {}
        """Since when some of a pool's are gone."""

    def read(self, pool: str) -> Backlog:
        """Read the whole pool.  Raises LagUnavailable."""
        with _as_unavailable(pool):
            spans = self._spans(pool)
            heads = self._heads.read(self._wanted_heads(spans))
        self._learn_costs(heads)
        lanes = [self._lane(pool, tier, length, spans, heads) for tier in Tier for length in Length]
        self._appended.update({lane.topic: lane.appended_records for lane in lanes})
        return Backlog(pool, tuple(lanes))

    def close(self) -> None:
        """Leave the broker."""
        self._heads.close()
        for consumer in self._groups.values():
            consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spans(self, pool: str) -> dict[Place, _Span]:
        """Committed offsets first, then the log's: the other way round a moving group could look ahead of the log."""
        partitions = self._settings.pools[pool].lane_partitions
        places = [(topic, p) for topic in catalog.lanes(self._settings, pool) for p in range(partitions)]
        group = self._group(pool)
        committed = group.committed([TopicPartition(*place) for place in places], self._timeout_s)
        starts = group.offsets_for_times(
            [TopicPartition(*place, OFFSET_BEGINNING) for place in places], self._timeout_s
        )
        ends = group.offsets_for_times([TopicPartition(*place, OFFSET_END) for place in places], self._timeout_s)
        answers = [_by_place(answer, places) for answer in (committed, starts, ends)]
        self._require_commits(pool, {place for place, at in answers[0].items() if at.offset >= 0})
        return {place: _span(*(answer[place] for answer in answers)) for place in places}

    def _require_commits(self, pool: str, found: set[Place]) -> None:
        """Raise LagUnavailable while commits are missing that were there a while ago."""
        gone = self._committed.get(pool, set()) - found
        if gone and self._clock.mono_s() - self._gone_s.setdefault(pool, self._clock.mono_s()) < GONE_S:
            topic, partition = min(gone)
            group = catalog.gpu_group(self._settings, pool)
            raise LagUnavailable(
                f"lag of pool {pool}: group {group} has lost its commits on {len(gone)} partitions, as on {topic}"
                f"[{partition}]; they are taken for unread {GONE_S:g} s after that"
            )
        self._gone_s.pop(pool, None)
        self._committed[pool] = found

    def _group(self, pool: str) -> Consumer:
        """A consumer of the pool's group that never joins it.

        The admin client cannot do this: it crashes when a group's coordinator moves (librdkafka#5040).
        """
        if pool not in self._groups:
            self._groups[pool] = clients.onlooker(self._settings, catalog.gpu_group(self._settings, pool))
        return self._groups[pool]

    def _wanted_heads(self, spans: Mapping[Place, _Span]) -> dict[Place, tuple[int, int]]:
        """Where lag is, its first record; on a lane without lag that still gets records, now and then its last one."""
        wanted = {place: (span.first, span.end) for place, span in spans.items() if span.lag_records}
        waiting = {topic for topic, _ in wanted}
        now_s = self._clock.mono_s()
        for topic, ends in _ends_by_topic(spans).items():
            cost = self._costs.get(topic)
            is_stale = cost is None or now_s - cost.read_s > COST_STALE_S
            if topic not in waiting and is_stale and sum(ends) > self._appended.get(topic, sum(ends)):
                last = max(ends)
                wanted[(topic, ends.index(last))] = (last - 1, last)
        return wanted

    def _learn_costs(self, heads: Mapping[Place, Head]) -> None:
        samples: dict[str, list[float]] = {}
        for (topic, _), head in heads.items():
            if head.is_fresh:
                samples.setdefault(topic, []).extend(head.costs_units)
        for topic, costs in samples.items():
            if costs:
                last = self._costs.get(topic)
                mean_units = rate.blend_cost(last.mean_units if last else None, sum(costs) / len(costs))
                self._costs[topic] = _Cost(mean_units, self._clock.mono_s())

    def _lane(
        self, pool: str, tier: Tier, length: Length, spans: Mapping[Place, _Span], heads: Mapping[Place, Head]
    ) -> LaneBacklog:
        topic = catalog.lane(self._settings, pool, tier, length)
        mine = {place: span for place, span in spans.items() if place[0] == topic}
        # A span without any record holds transaction markers or compacted records: nothing waits there.
        waiting = {place: span for place, span in mine.items() if span.lag_records and place in heads}
        lag_records = sum(span.lag_records for span in waiting.values())
        cost = self._costs.get(topic)
        if lag_records and cost is None:
            raise LagUnavailable(f"the cost of what waits on {topic} is unknown: none of its records could be read")
        now_s, each_units = self._clock.wall_s(), cost.mean_units if cost else 0.0
        return LaneBacklog(
            tier,
            length,
            topic,
            lag_records,
            cost_units=lag_records * each_units,
            oldest_age_s=max((max(0.0, now_s - heads[place].appended_s) for place in waiting), default=0.0),
            appended_records=sum(span.end for span in mine.values()),
            mean_units=cost.mean_units if cost else None,
            units_by_partition=tuple(
                waiting[place].lag_records * each_units if place in waiting else 0.0 for place in sorted(mine)
            ),
        )


def _by_place(answer: list[TopicPartition], places: list[Place]) -> dict[Place, TopicPartition]:
    """The answer for every place; raises when one is missing or an error."""
    for tp in answer:
        if tp.error is not None:
            raise KafkaException(tp.error)
    found = {(tp.topic, tp.partition): tp for tp in answer}
    if missing := set(places) - set(found):
        raise LagUnavailable(f"the broker said nothing about {len(missing)} of {len(places)} partitions")
    return found


def _span(committed: TopicPartition, start: TopicPartition, end: TopicPartition) -> _Span:
    """From the committed offset, or from the log's start where nothing is committed or retention went past it."""
    if committed.offset < 0:
        return _Span(start.offset, end.offset, max(0, end.offset - start.offset))
    first = max(committed.offset, start.offset)
    finished = _finished_between(committed.offset, committed.metadata, first, end.offset)
    return _Span(first, end.offset, max(0, end.offset - first - finished))


def _finished_between(offset: int, metadata: str | None, first: int, end: int) -> int:
    try:
        runs = offset_map.decode(offset, metadata)
    except offset_map.ForeignMetadata:
        return 0  # written by someone else: everything beyond the offset counts as unfinished
    return sum(max(0, min(last + 1, end) - max(begin, first)) for begin, last in runs)


def _ends_by_topic(spans: Mapping[Place, _Span]) -> dict[str, list[int]]:
    """End offsets of each topic, by partition."""
    ends: dict[str, list[int]] = {}
    for (topic, _), span in sorted(spans.items()):
        ends.setdefault(topic, []).append(span.end)
    return ends


@contextlib.contextmanager
def _as_unavailable(pool: str) -> Iterator[None]:
    """Turn a failed or late answer of the broker into LagUnavailable."""
    try:
        yield
    except KafkaException as error:
        raise LagUnavailable(f"lag of pool {pool}: {error.args[0].str()}") from error
