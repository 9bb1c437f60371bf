"""The pool's consumers as their telemetry shows them, and what was placed on each since: the input of placement."""

import threading
from dataclasses import dataclass, field

from confluent_kafka import TopicPartition
from msgspec import MsgspecError

from streams.policy import placement
from topics import clients, codec
from topics.clock import Clock
from topics.records import Telemetry
from topics.settings import Settings

_POLL_S = 0.5


@dataclass(slots=True)
class _Member:
    telemetry: Telemetry
    placed_units: float = 0.0


@dataclass(slots=True)
class _Lane:
    owners: dict[int, str] = field(default_factory=dict)
    turn: int = 0


class Fleet:
    """Follows the telemetry topic in a thread of its own; `place` is called from the event loop only.

    The thread replaces whole members and maps, the loop adds to `placed_units`: losing such an addition to a fresh
    reading is harmless, since that reading will soon hold it.
    """

    def __init__(self, settings: Settings, clock: Clock, stale_s: float) -> None:
        """`stale_s`: telemetry older than this is as good as none."""
        self._settings, self._clock, self._stale_s = settings, clock, stale_s
        self._members: dict[str, _Member] = {}
        self._lanes: dict[str, _Lane] = {}
        self._running = True
        self._thread = threading.Thread(target=self._follow, name="telemetry", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        if not self._thread.is_alive():
            return
        self._running = False
        self._thread.join(timeout=4 * _POLL_S)

    def place(self, topic: str, partitions: int, cost_units: float) -> int:
        """Choose the partition of a lane for work of this cost, and remember it."""
        lane = self._lanes.setdefault(topic, _Lane())
        lane.turn += 1
        fresh_after_s = self._clock.wall_s() - self._stale_s
        members = {
            partition: member
            for partition, consumer in lane.owners.items()
            if (member := self._members.get(consumer)) and member.telemetry.at_s >= fresh_after_s
        }
        owners = {partition: _owner(member) for partition, member in members.items()}
        chosen = placement.choose_partition(owners, partitions, lane.turn)
        if chosen in members:
            members[chosen].placed_units += cost_units
        return chosen

    def note(self, telemetry: Telemetry) -> None:
        """Take in one reading."""
        if telemetry.state == "gone":
            self._members.pop(telemetry.consumer, None)
            return
        self._members[telemetry.consumer] = _Member(telemetry)
        for topic, partitions in telemetry.lanes.items():
            lane = self._lanes.setdefault(topic, _Lane())
            kept = {p: owner for p, owner in lane.owners.items() if owner != telemetry.consumer}
            lane.owners = {**kept, **dict.fromkeys(partitions, telemetry.consumer)}

    def _follow(self) -> None:
        reader = clients.reader(self._settings)
        reader.assign([TopicPartition(self._settings.topic("telemetry"), 0, 0)])
        while self._running:
            message = reader.poll(_POLL_S)
            if message is None or message.error() is not None or not (value := message.value()):
                continue
            try:
                self.note(codec.decode_telemetry(value))
            except MsgspecError:
                continue  # a foreign record says nothing about load
        reader.close()


def _owner(member: _Member) -> placement.Owner:
    telemetry = member.telemetry
    return placement.Owner(
        consumer=telemetry.consumer,
        load_units=telemetry.queued_units + telemetry.inflight_units + member.placed_units,
        ready=telemetry.state == "ready",
        gpu_memory_used_ratio=telemetry.gpu_memory_used_ratio,
        gpu_temperature_c=telemetry.gpu_temperature_c,
    )
