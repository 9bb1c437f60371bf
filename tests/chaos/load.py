"""A steady stream of requests, whatever becomes of them, and what has been answered so far."""

import contextlib
import threading
import time
import uuid

from confluent_kafka import KafkaException

from tests.support.streams_worker import TopicLog, chat
from topics import catalog, clients, codec
from topics.records import Reply

STEADY = ("acme", "globex")
POOR = "poor"
FLUSH_S = 150.0


class Load:
    """Sends at a fixed pace in a thread of its own, from `start` to `stop`."""

    def __init__(self, settings, per_s):
        self._settings, self._per_s = settings, per_s
        self._landing = [spot.topic for spot in catalog.landings(settings)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.landed, self.refused = {}, []
        """Places of the records that the broker has, with their ids; errors of those that it may not have."""

    def start(self):
        self._thread.start()

    def stop(self):
        self._over.set()
        self._thread.join(FLUSH_S + 10)
        assert not self._thread.is_alive(), "the load could not be sent"

    def _run(self):
        producer = clients.producer(self._settings)
        start_s, number = time.monotonic(), 0
        while not self._over.wait(max(0.0, start_s + number / self._per_s - time.monotonic())):
            identity = f"c{number}-{uuid.uuid4().hex[:6]}"
            value, tenant = _record(number)
            producer.produce(
                self._landing[number % len(self._landing)], value, tenant.encode(),
                headers=[("rampmeter_id", identity.encode())], on_delivery=self._noting(identity),
            )  # fmt: skip
            producer.poll(0)
            number += 1
        producer.flush(FLUSH_S)

    def _noting(self, identity):
        def note(error, message):
            if error is None:
                self.landed[message.topic(), message.partition(), message.offset()] = identity
            else:
                self.refused.append(f"{identity}: {error}")

        return note


class Answers:
    """Places of landing records that have their terminal reply, read on demand."""

    def __init__(self, settings):
        self._log = TopicLog(settings, catalog.default_reply_name(settings))
        self._places, self._read = set(), 0

    def poll(self):
        """All so far, as far as the broker says: what it does not tell now it tells later."""
        with contextlib.suppress(KafkaException):
            self._log.poll()
        messages = self._log.messages
        for message in messages[self._read :]:
            answer = codec.decode_answer(message.value())
            if isinstance(answer, Reply) and not answer.repeat:
                self._places.add(origin(answer))
        self._read = len(messages)
        return self._places

    def close(self):
        self._log.close()


def origin(reply):
    """The place of the landing record that a reply answers."""
    return reply.origin.topic, reply.origin.partition, reply.origin.offset


def _record(number):
    """One record's value and tenant: now and then refused, unreadable or from a tenant with little budget."""
    match number % 10:
        case 7:
            return chat(model="gpt-9"), STEADY[0]
        case 8:
            return b"\xff", STEADY[0]
        case 9:
            return chat(max_tokens=100), POOR
        case kind:
            return chat(max_tokens=8 + kind, stream=kind == 3), STEADY[number % len(STEADY)]
