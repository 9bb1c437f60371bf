import pytest
from confluent_kafka import KafkaError, KafkaException

from gpu_consumers.outbox import Letter, Outbox


class FakeProducer:
    def __init__(self, code):
        self._code = code

    def produce(self, *_args, **_kwargs):
        raise KafkaException(KafkaError(self._code))


@pytest.mark.parametrize(("code", "ends"), [(KafkaError._FATAL, True), (KafkaError.MSG_SIZE_TOO_LARGE, False)])
def test_a_producer_that_has_given_up_ends_the_process_and_a_refused_letter_does_not(code, ends):
    outbox, acks = Outbox(FakeProducer(code), lambda: FakeProducer(code), lambda: None), []
    outbox.send(Letter("replies", b"k", b"{}"), acks.append)
    outbox.deliver()
    assert [ack.error for ack in acks] == [code]
    assert (outbox.failure is not None) == ends
