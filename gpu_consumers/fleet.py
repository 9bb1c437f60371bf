"""The other consumers of the pool, as the telemetry topic shows them."""

from typing import NamedTuple

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from gpu_consumers.following import POLL_S, Following
from gpu_consumers.policy.roles import Peer
from gpu_consumers.policy.selection import Lane
from gpu_consumers.settings import GpuSettings
from topics import clients, codec, tail
from topics.clock import Clock
from topics.records import Role
from topics.telemetry import Telemetry

log = structlog.get_logger()

STALE_S = 5.0
"""Who said nothing for this long does not count.  Too small: a slow moment looks like a death.  Too large: a dead
consumer's lanes wait."""
MAX_CONSUMERS = 10_000
_FORGET_S = 60.0
_TIMEOUT_S = 10.0


class _Seen(NamedTuple):
    first_s: float
    last_s: float
    """By this machine's clock, since the others' may be wrong."""
    telemetry: Telemetry


class Fleet:
    """Follows the pool.  The thread replaces whole entries; the loop reads."""

    def __init__(self, settings: GpuSettings, lanes: dict[str, Lane], clock: Clock) -> None:
        self._settings, self._lanes, self._clock = settings, lanes, clock
        self._seen: dict[str, _Seen] = {}
        self.following = Following("fleet", settings, self._is_placed, self._turn)

    def peers(self) -> list[Peer] | None:
        """Live consumers of the pool without this one; None while its own telemetry does not come back either."""
        now_s, me = self._clock.mono_s(), self._settings.gpu.consumer_id
        fresh = {name: seen for name, seen in list(self._seen.items()) if now_s - seen.last_s <= STALE_S}
        if me not in fresh:
            return None
        there = [seen for name, seen in fresh.items() if name != me and seen.telemetry.state != "gone"]
        return [self._peer(seen, now_s) for seen in there]

    def note(self, telemetry: Telemetry) -> None:
        """Take in one report of the pool."""
        now_s = self._clock.mono_s()
        before = self._seen.get(telemetry.consumer)
        if telemetry.pool != self._settings.gpu.pool or (before is None and not self._has_room(now_s)):
            return
        self._seen[telemetry.consumer] = _Seen(before.first_s if before else now_s, now_s, telemetry)

    def _has_room(self, now_s: float) -> bool:
        self._seen = {name: seen for name, seen in self._seen.items() if now_s - seen.last_s <= _FORGET_S}
        return len(self._seen) < MAX_CONSUMERS

    def _peer(self, seen: _Seen, now_s: float) -> Peer:
        t = seen.telemetry
        # A consumer of before there were roles, or of a role that came later, serves what it owns.
        role = Role(t.role) if t.role in set(Role) else Role.GENERAL
        lanes = {self._lanes[topic]: owned for topic, owned in t.lanes.items() if topic in self._lanes}
        return Peer(role, lanes, t.queued_units > 0, now_s - seen.first_s, t.takes_work)

    def _is_placed(self, reader: Consumer) -> bool:
        """Start at what is fresh; False while the broker does not answer."""
        since = clients.at(self._settings.topic("telemetry"), 0, self._clock.wall_s() - STALE_S)
        try:
            (found,) = tail.at_times(reader, [since], _TIMEOUT_S)
        except KafkaException as error:
            log.warning("telemetry_unread", error=error.args[0].name())
            return False
        offset = found.offset if found.offset >= 0 else OFFSET_END
        reader.assign([TopicPartition(since.topic, since.partition, offset)])
        return True

    def _turn(self, reader: Consumer) -> None:
        message = reader.poll(POLL_S)
        if message is None or message.error() is not None:
            return
        try:
            self.note(codec.decode_telemetry(message.value() or b""))
        except codec.UNREADABLE:
            return  # another version's record; its consumer counts as silent
