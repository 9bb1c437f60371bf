"""What brokers say of one partition only, or while its leader moves; real ones were never made to say it on demand."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from topics import clients, tail

MOVING, STARTING, GONE = (
    KafkaError(code)
    for code in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._UNKNOWN_PARTITION, KafkaError.REQUEST_TIMED_OUT)
)


def test_who_is_no_leader_is_asked_again_and_another_error_is_told_at_once():
    answers = [KafkaException(MOVING), KafkaException(STARTING), (3, 7), KafkaException(GONE)]

    def answer(*_, **__):
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    reader = SimpleNamespace(get_watermark_offsets=answer)
    assert tail.watermarks(reader, clients.at("t", 0, 1.0), timeout_s=5) == (3, 7)
    with pytest.raises(KafkaException, match="timed out"):
        tail.watermarks(reader, clients.at("t", 0, 1.0), timeout_s=5)


def test_a_partition_that_does_not_answer_is_not_one_without_records():
    answered = SimpleNamespace(topic="t", partition=0, offset=7, error=None)
    silent = SimpleNamespace(topic="t", partition=1, offset=-1001, error=KafkaError(KafkaError.REQUEST_TIMED_OUT))
    reader = SimpleNamespace(offsets_for_times=lambda asked, timeout: [answered, silent][: len(asked)])
    assert tail.at_times(reader, [clients.at("t", 0, 1.0)], timeout_s=5) == [answered]
    with pytest.raises(KafkaException):
        tail.at_times(reader, [clients.at("t", 0, 1.0), clients.at("t", 1, 1.0)], timeout_s=5)
