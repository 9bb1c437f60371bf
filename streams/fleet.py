"""The pools' consumers as their telemetry shows them, and what was placed on each since: the input of placement."""

import random
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field

import msgspec
from confluent_kafka import Message, TopicPartition

from streams import following, rules
from streams.policy import placement
from streams.policy.placement import Candidates, Case, Owner, Spot
from streams.policy.sharing import Capacity
from streams.settings import StreamsSettings
from topics import clients, codec
from topics.clock import Clock
from topics.telemetry import Telemetry

_POLL_S = 0.5
_FORGET_S = 3600.0
"""Consumers that are silent for this long are dropped when a new one comes: each life of a process is a new one."""


_NOBODY = Candidates(Case.UNKNOWN)


class _Member(msgspec.Struct, frozen=True):
    telemetry: Telemetry
    moved_s: float
    owners_version: int
    """Of the owners of all lanes, with its own partitions among them."""


class _Part(msgspec.Struct, frozen=True):
    """A member's part in a lane, found again for each of its reports."""

    member: _Member
    partitions: list[int]
    owner: Owner


@dataclass(slots=True)
class _Lane:
    owners: dict[int, str] = field(default_factory=dict)
    turn: int = 0
    seen: Candidates = _NOBODY
    seen_version: int = -1
    parts: dict[str, _Part] = field(default_factory=dict)


class Fleet:
    """Follows the telemetry topic in a thread of its own; `place` is called from the event loop only.

    The thread replaces whole members and maps and counts `_version` up afterwards; the loop adds to `_placed_units`:
    losing such an addition to a fresh report is harmless, since that report will soon hold it.
    """

    def __init__(self, settings: StreamsSettings, clock: Clock, draw: Callable[[], float] = random.random) -> None:
        """`draw` gives numbers from 0 to before 1."""
        self._settings, self._clock, self._draw = settings, clock, draw
        self._rules = rules.of_placement(settings.streams)
        self._members: dict[str, _Member] = {}
        """Replaced whole by the thread, so that the loop may go through it meanwhile."""
        self._placed_units: dict[str, float] = {}
        self._dispatched_units: dict[str, float] = {}
        self._lanes: dict[str, _Lane] = {}
        self._version = self._owners_version = 0
        self._running = True
        self._thread = following.thread("telemetry", self._follow)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        if not self._thread.is_alive():
            return
        self._running = False
        self._thread.join(timeout=4 * _POLL_S)

    def place(self, topic: str, partitions: int, cost_units: float) -> Spot:
        """Choose the partition of a lane for work of this cost, and remember it."""
        lane = self._lanes.get(topic) or self._lanes.setdefault(topic, _Lane())
        lane.turn += 1
        seen = self._candidates(lane, partitions)
        if not seen.owners:
            return Spot(lane.turn % partitions, seen.case)
        draw = self._draw
        choice = placement.choose(seen.owners, self._placed_units, self._rules, (draw(), draw()))
        chosen = choice.owner
        self._placed_units[chosen.consumer] = self._placed_units.get(chosen.consumer, 0.0) + cost_units
        return Spot(chosen.partitions[int(draw() * len(chosen.partitions))], seen.case, choice)

    def capacity(self, pool: str) -> Capacity:
        """What the pool's fresh and ready consumers can do together; who does not know yet counts as their mean."""
        ready = [m.telemetry for m in self._fresh(pool) if m.telemetry.takes_work]
        return Capacity(
            _total([t.capacity_units_per_s for t in ready]),
            _total([t.capacity_units for t in ready]),
        )

    def dispatched_units(self, pool: str) -> float | None:
        """Cost that the pool's consumers put into their engines since this process follows them; None if all are stale.

        Never falls; what a consumer had dispatched before its first report here is not in it.
        """
        return self._dispatched_units.get(pool, 0.0) if self._fresh(pool) else None

    def has_room(self, pool: str) -> bool:
        """Whether a healthy consumer of the pool has nothing waiting: more work would take nothing from other work."""
        return any(
            m.telemetry.queued_units <= 0
            and self._placed_units.get(m.telemetry.consumer, 0.0) <= 0
            and placement.owner(m.telemetry, (), m.moved_s).is_healthy(self._rules)
            for m in self._fresh(pool)
        )

    def is_served(self, topic: str, partition: int) -> bool:
        """Whether the owner of a lane's partition is known, fresh and healthy."""
        lane = self._lanes.get(topic)
        member = self._members.get(lane.owners.get(partition, "")) if lane else None
        if member is None or self._clock.wall_s() - member.telemetry.at_s > self._rules.stale_s:
            return False
        return placement.owner(member.telemetry, (partition,), member.moved_s).is_healthy(self._rules)

    def note(self, telemetry: Telemetry) -> None:
        """Take in one reading; one from the future, by its sender's clock, is from now: it must be stale some day."""
        now_s = self._clock.wall_s()
        if telemetry.at_s > now_s:
            telemetry = msgspec.structs.replace(telemetry, at_s=now_s)
        before = self._members.get(telemetry.consumer)
        if before is not None:
            more_units = max(0.0, telemetry.dispatched_units_total - before.telemetry.dispatched_units_total)
            self._dispatched_units[telemetry.pool] = self._dispatched_units.get(telemetry.pool, 0.0) + more_units
        if telemetry.state == "gone":
            self._take_out({telemetry.consumer})
            self._version += 1
            return
        if before is None:
            self._forget(telemetry.at_s - _FORGET_S)
        moved_s = placement.last_moved_s(
            before.moved_s if before else telemetry.at_s, before.telemetry if before else None, telemetry
        )
        if before is None or before.owners_version != self._owners_version or before.telemetry.lanes != telemetry.lanes:
            self._take_lanes(telemetry)
        members = self._members.copy()
        members.pop(telemetry.consumer, None)
        members[telemetry.consumer] = _Member(telemetry, moved_s, self._owners_version)
        self._members = members
        self._placed_units[telemetry.consumer] = 0.0
        self._version += 1

    def _take_lanes(self, telemetry: Telemetry) -> None:
        for topic in telemetry.lanes:
            self._lanes.setdefault(topic, _Lane())
        for topic, lane in list(self._lanes.items()):  # at once: the loop adds to it
            owned = telemetry.lanes.get(topic, ())
            if owned or telemetry.consumer in lane.owners.values():
                kept = {p: owner for p, owner in lane.owners.items() if owner != telemetry.consumer}
                owners = {**kept, **dict.fromkeys(owned, telemetry.consumer)}
                if owners != lane.owners:
                    lane.owners, self._owners_version = owners, self._owners_version + 1

    def _candidates(self, lane: _Lane, partitions: int) -> Candidates:
        """Found again only after a new report or when one has become stale: this is asked for every request."""
        now_s = self._clock.wall_s()
        version = self._version
        if lane.seen_version != version or now_s > lane.seen.until_s:
            mine: dict[str, list[int]] = {}
            for partition, consumer in lane.owners.items():
                if partition < partitions:
                    mine.setdefault(consumer, []).append(partition)
            lane.parts = {
                consumer: _part(lane.parts.get(consumer), member, owned)
                for consumer, member in self._members.items()
                if (owned := mine.get(consumer))
            }
            owners = [part.owner for part in lane.parts.values()]
            lane.seen, lane.seen_version = placement.candidates(owners, now_s, self._rules), version
        return lane.seen

    def _fresh(self, pool: str) -> list[_Member]:
        fresh_after_s = self._clock.wall_s() - self._rules.stale_s
        members = self._members.values()
        return [m for m in members if m.telemetry.pool == pool and m.telemetry.at_s >= fresh_after_s]

    def _forget(self, before_s: float) -> None:
        self._take_out({name for name, member in self._members.items() if member.telemetry.at_s < before_s})

    def _take_out(self, consumers: set[str]) -> None:
        self._members = {name: member for name, member in self._members.items() if name not in consumers}
        for consumer in consumers:
            self._placed_units.pop(consumer, None)

    def _follow(self) -> None:
        with closing(clients.reader(self._settings)) as reader:
            reader.assign([TopicPartition(self._settings.topic("telemetry"), 0, 0)])
            while self._running:
                message = reader.poll(_POLL_S)
                if message is not None:
                    self._read(message)

    def _read(self, message: Message) -> None:
        if message.error() is None and (value := message.value()):
            with suppress(*codec.UNREADABLE):  # a foreign record says nothing about load
                self.note(codec.decode_telemetry(value))


def _part(before: _Part | None, member: _Member, partitions: list[int]) -> _Part:
    if before is not None and before.member is member and before.partitions == partitions:
        return before
    return _Part(member, partitions, placement.owner(member.telemetry, partitions, member.moved_s))


def _total(values: list[float | None]) -> float | None:
    """The sum, the unknown as the mean of the known; None when none is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) * len(values) if known else None
