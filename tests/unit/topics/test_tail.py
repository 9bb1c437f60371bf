"""What the broker says of one partition only; a real one was never made to say it on demand."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from topics import clients, tail


def test_a_partition_that_does_not_answer_is_not_one_without_records():
    answered = SimpleNamespace(topic="t", partition=0, offset=7, error=None)
    silent = SimpleNamespace(topic="t", partition=1, offset=-1001, error=KafkaError(KafkaError.REQUEST_TIMED_OUT))
    reader = SimpleNamespace(offsets_for_times=lambda asked, timeout: [answered, silent][: len(asked)])
    assert tail.at_times(reader, [clients.at("t", 0, 1.0)], timeout_s=5) == [answered]
    with pytest.raises(KafkaException):
        tail.at_times(reader, [clients.at("t", 0, 1.0), clients.at("t", 1, 1.0)], timeout_s=5)
