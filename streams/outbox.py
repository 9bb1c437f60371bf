"""Sends what a micro-batch decided and waits once for all of it.

librdkafka's producer instead of Faust's, which is pure Python: idempotent (see ARCHITECTURE.md).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from structlog import get_logger

from topics import clients, codec, delivery
from topics.settings import Settings

_log = get_logger()
_FULL_WAIT_S = 0.01
_POLL_S = 0.002
"""Between two looks for delivery reports while some are due.  Too large: latency.  Too small: CPU."""
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to send.  `partition` None leaves the choice to the key; `value` None lets compaction forget it.

    All but an answer may lie on its topic twice: whoever reads it knows it by its id.
    """

    topic: str
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None

    @property
    def is_answer(self) -> bool:
        """Whether someone outside waits for it."""
        return any(name == codec.ID_HEADER for name, _ in self.headers)


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A record that the broker will never take, and why."""

    record: Outgoing
    reason: str
    is_unsure: bool = False
    """It may lie in the log all the same."""


class Sends(Protocol):
    """What admission sends through: an `Outbox`, or the fence around that of a shadow."""

    async def deliver(self, records: Sequence[Outgoing]) -> list[Undelivered]:
        """Return when the broker has them, with those that it will never take and answers of which nobody knows."""


class _Wait:
    """Counts delivery reports."""

    def __init__(self, count: int) -> None:
        self.failed: list[tuple[int, KafkaError]] = []
        self.left = count

    def report(self, index: int, error: KafkaError | None) -> None:
        if error is not None:
            self.failed.append((index, error))
        self.left -= 1


class Outbox:
    """One producer per process, on its event loop.

    Delivery reports are served there too: a thread for them takes the interpreter's lock for each, and what the loop
    has to do waits for it tens of milliseconds.
    """

    def __init__(self, settings: Settings, delivered_within_s: float) -> None:
        """Start the producer; `close` flushes it.  No record is sent later than `delivered_within_s` after its turn."""
        # No linger: a micro-batch is a batch already.
        self._producer: Producer = clients.producer(settings, delivered_within_s=delivered_within_s, linger_ms=0)

    async def deliver(self, records: Sequence[Outgoing]) -> list[Undelivered]:
        """Send all and wait until the broker has them.

        What can succeed later is sent again until it does; what never can (too large, no such topic) is returned, and
        an answer whose fate is unknown, since another run of its record may answer by then.
        """
        lost: list[Undelivered] = []
        pending = list(records)
        while pending:
            failed = await self._send(pending)
            retry: list[Outgoing] = []
            for record, error in ((pending[i], error) for i, error in failed):
                if error.code() not in delivery.FINAL:
                    if record.is_answer:
                        lost.append(Undelivered(record, error.str(), is_unsure=True))
                    else:
                        retry.append(record)
                elif error.code() in delivery.TOO_LARGE and len(pending) > 1:
                    # The broker measures batches: all that lie in one are too large when it is.
                    lost += await self.deliver([record])
                else:
                    lost.append(Undelivered(record, error.str()))
            if retry:
                _log.warning("delivery_retried", records=len(retry), error=failed[0][1].str())
                await asyncio.sleep(_RETRY_S)
            pending = retry
        return lost

    async def _send(self, records: Sequence[Outgoing]) -> list[tuple[int, KafkaError]]:
        wait = _Wait(len(records))
        for index, record in enumerate(records):
            while not self._enqueue(index, record, wait):  # noqa: ASYNC110 - librdkafka tells no one of free room
                await asyncio.sleep(_FULL_WAIT_S)
        self._producer.poll(0)
        while wait.left:
            await asyncio.sleep(_POLL_S)
            self._producer.poll(0)
        return wait.failed

    def _enqueue(self, index: int, record: Outgoing, wait: _Wait) -> bool:
        """Hand one record to librdkafka; False when its queue is full."""

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            wait.report(index, error)

        try:
            self._producer.produce(
                record.topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=-1 if record.partition is None else record.partition,
                on_delivery=on_delivery,
            )
        except BufferError:
            return False
        except KafkaException as error:  # refused at once, for example for its size
            if clients.is_fatal(error.args[0]):  # this producer will never send again: only a new process helps
                raise
            wait.report(index, error.args[0])
        return True

    def close(self, timeout_s: float = 10.0) -> None:
        """Flush for at most `timeout_s`."""
        self._producer.flush(timeout_s)
