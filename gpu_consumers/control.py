"""Follows the control topic for cancels, and for the order to drain."""

from collections.abc import Callable

import structlog
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from gpu_consumers.cancels import Noted
from gpu_consumers.following import POLL_S, Following
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.settings import GpuSettings
from topics import clients, codec, orders, tail
from topics.clock import Clock
from topics.records import Control, ControlAction

log = structlog.get_logger()

_TIMEOUT_S = 10.0
_BATCH = 500
MAX_WAITING = 5000
"""Orders that the loop has not taken yet; the reader waits while there are more."""


class Follower:
    """Puts every cancel of the last `dedupe_window_s`, and each new one, into `cancels`.

    `on_drain` is called in its thread, again for an order that is given again.
    """

    def __init__(
        self, settings: GpuSettings, clock: Clock, cancels: Mailbox[Noted], on_drain: Callable[[], object]
    ) -> None:
        self._settings, self._clock, self._cancels, self._on_drain = settings, clock, cancels, on_drain
        self._end = 0
        self.following = Following("control", settings, self._is_placed, self._turn)

    def _is_placed(self, reader: Consumer) -> bool:
        """Start at the first order that still counts; False while the broker does not answer."""
        topic, since_s = self._settings.topic("control"), self._clock.wall_s() - self._settings.dedupe_window_s
        try:
            # The end comes first: what is written between the two calls lies behind it.
            _, self._end = tail.watermarks(reader, TopicPartition(topic, 0), _TIMEOUT_S)
            (found,) = tail.at_times(reader, [clients.at(topic, 0, since_s)], _TIMEOUT_S)
        except KafkaException as error:
            log.warning("control_unread", error=error.args[0].name())
            return False
        reader.assign([TopicPartition(topic, 0, found.offset if found.offset >= 0 else self._end)])
        return True

    def _turn(self, reader: Consumer) -> None:
        if len(self._cancels) >= MAX_WAITING:
            self.following.pause()
            return
        first = reader.poll(POLL_S)
        for message in [first, *reader.consume(_BATCH, timeout=0)] if first is not None else []:
            order = None if message.error() is not None else order_in(message, self._settings)
            if order is not None and order.action is ControlAction.CANCEL:
                self._cancels.put(Noted(order, self._at_s(message)))
            elif order is not None:
                self._on_drain()

    def _at_s(self, message: Message) -> float:
        """Never by the sender's clock, which may be wrong; by the broker's for what was not seen to arrive."""
        now_s = self._clock.wall_s()
        return now_s if (message.offset() or 0) >= self._end else min(now_s, clients.written_s(message))


def order_in(message: Message, settings: GpuSettings) -> Control | None:
    """The order of this record if it concerns this consumer; what admission ignores orders nothing here either."""
    try:
        key, order = (message.key() or b"").decode(), codec.decode_control(message.value() or b"")
    except codec.UNREADABLE:
        return None
    concerns_us = order.action is ControlAction.CANCEL or (
        order.action is ControlAction.DRAIN and order.name == settings.gpu.consumer_id
    )
    return order if concerns_us and orders.fault(order, key, settings.pools) is None else None
