"""Sends what a micro-batch decided and waits once for all of it.

librdkafka's producer instead of Faust's, which is pure Python: idempotent (see ARCHITECTURE.md).
"""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from structlog import get_logger

from topics import clients, delivery
from topics.settings import Settings

_log = get_logger()
_FULL_WAIT_S = 0.01
_POLL_S = 0.5
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to send.  `partition` None leaves the choice to the key; `value` None lets compaction forget it."""

    topic: str
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A record that the broker will never take, and why."""

    record: Outgoing
    reason: str


class _Wait:
    """Counts delivery reports; the producer's thread is the only writer after the last `produce`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.future: asyncio.Future[None] = loop.create_future()
        self.failed: list[tuple[int, KafkaError]] = []
        self._loop, self._left = loop, count
        self._lock = threading.Lock()

    def report(self, index: int, error: KafkaError | None) -> None:
        with self._lock:
            if error is not None:
                self.failed.append((index, error))
            self._left -= 1
            done = self._left == 0
        if done:
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Outbox:
    """One producer per process, with a thread that serves its delivery reports."""

    def __init__(self, settings: Settings) -> None:
        """Start the producer; `close` flushes it."""
        # No linger: a micro-batch is a batch already.  No time limit: a record given up with its fate unknown would
        # be sent twice, and one that waits is not lost.
        self._producer: Producer = clients.producer(settings, delivery_timeout_ms=0, linger_ms=0)
        self._open = True
        self._thread = threading.Thread(target=self._serve, name="outbox", daemon=True)
        self._thread.start()

    async def deliver(self, records: Sequence[Outgoing]) -> list[Undelivered]:
        """Send all and wait until the broker has them.

        What can succeed later is sent again until it does; what never can (too large, no such topic) is returned.
        """
        lost: list[Undelivered] = []
        pending = list(records)
        while pending:
            failed = await self._send(pending)
            retry = [pending[i] for i, error in failed if _may_succeed(error)]
            lost += [Undelivered(pending[i], error.str()) for i, error in failed if not _may_succeed(error)]
            if retry:
                _log.warning("delivery_retried", records=len(retry), error=failed[0][1].str())
                await asyncio.sleep(_RETRY_S)
            pending = retry
        return lost

    async def _send(self, records: Sequence[Outgoing]) -> list[tuple[int, KafkaError]]:
        wait = _Wait(asyncio.get_running_loop(), len(records))
        for index, record in enumerate(records):
            while not self._enqueue(index, record, wait):  # noqa: ASYNC110 - librdkafka tells no one of free room
                await asyncio.sleep(_FULL_WAIT_S)
        await wait.future
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
            if error.args[0].fatal():  # this producer will never send again: only a new process helps
                raise
            wait.report(index, error.args[0])
        return True

    def _serve(self) -> None:
        while self._open:
            self._producer.poll(_POLL_S)

    def close(self, timeout_s: float = 10.0) -> None:
        """Flush for at most `timeout_s`."""
        self._producer.flush(timeout_s)
        self._open = False
        self._thread.join(timeout=2 * _POLL_S)


def _may_succeed(error: KafkaError) -> bool:
    return error.code() not in delivery.FINAL
