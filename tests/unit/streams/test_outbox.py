"""Nothing counts as sent before the broker said so."""

import asyncio

import pytest
from confluent_kafka import KafkaError, KafkaException

from streams import outbox
from streams.outbox import Outbox, Outgoing
from topics.settings import Settings

pytestmark = pytest.mark.asyncio


class Producer:
    """Takes records; a report is given when the test says so, or from `errors` in order."""

    def __init__(self):
        self.taken, self.errors, self.refuses, self.silent = [], [], [], False

    def produce(self, topic, *, on_delivery, **_):
        if self.refuses:
            raise self.refuses.pop(0)
        self.taken.append(topic)
        if not self.silent:
            on_delivery(self.errors.pop(0) if self.errors else None, None)

    def poll(self, timeout_s):
        assert timeout_s == 0, "the event loop must not wait here"

    def flush(self, _timeout_s):
        return 0


@pytest.fixture
def producer(monkeypatch):
    made = Producer()
    monkeypatch.setattr(outbox.clients, "producer", lambda *_, **__: made)
    monkeypatch.setattr(outbox, "_RETRY_S", 0.0)
    monkeypatch.setattr(outbox, "_FULL_WAIT_S", 0.0)
    monkeypatch.setattr(outbox, "_POLL_S", 0.0)
    return made


@pytest.fixture
def box(producer):
    made = Outbox(Settings(kafka={"bootstrap.servers": "127.0.0.1:1"}), 10.0)
    yield made
    made.close()


RECORDS = [Outgoing(topic, b"k", b"v") for topic in ("a", "b", "c")]


async def test_a_delivery_ends_only_with_the_last_report(box, producer):
    producer.silent = True
    sending = asyncio.create_task(box.deliver(RECORDS))
    for _ in range(5):
        await asyncio.sleep(0)
    assert producer.taken == ["a", "b", "c"]
    assert not sending.done()
    sending.cancel()


async def test_what_may_succeed_later_is_sent_again_until_it_does(box, producer):
    producer.errors = [None, KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), None, KafkaError(KafkaError._MSG_TIMED_OUT)]
    assert await box.deliver(RECORDS) == []
    assert producer.taken == ["a", "b", "c", "b", "b"]


async def test_what_never_can_is_returned_with_its_reason(box, producer):
    producer.errors = [None, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), None]
    (lost,) = await box.deliver(RECORDS)
    assert (lost.record, bool(lost.reason)) == (RECORDS[1], True)
    assert producer.taken == ["a", "b", "c"]


async def test_what_was_too_large_in_a_batch_is_given_up_only_when_it_is_alone_too(box, producer):
    large = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    producer.errors = [None, large, large, None, large]
    assert [lost.record for lost in await box.deliver(RECORDS)] == [RECORDS[2]]
    assert producer.taken == ["a", "b", "c", "b", "c"]


async def test_a_full_queue_is_waited_for(box, producer):
    producer.refuses = [BufferError(), BufferError()]
    assert await box.deliver(RECORDS) == []
    assert producer.taken == ["a", "b", "c"]


async def test_a_producer_that_will_never_send_again_is_an_error(box, producer):
    producer.refuses = [KafkaException(KafkaError(KafkaError._FATAL, "fenced", fatal=True))]
    with pytest.raises(KafkaException):
        await box.deliver(RECORDS)
