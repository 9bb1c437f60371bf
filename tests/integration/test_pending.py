import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from topics import answers, clients, codec, pending
from topics.clock import SystemClock
from topics.outcomes import Outcome
from topics.records import Reply


@pytest.fixture
def transaction(settings):
    """An open transaction with one answer in partition 0, before another's answer in the same partition."""
    producer = clients.producer(
        settings, delivered_within_s=30, transactional_id=settings.topic("t"), transaction_timeout_ms=30_000
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    put(settings, producer, "open")
    put(settings, clients.producer(settings), "behind")
    return producer


def put(settings, producer, request_id, partition=0):
    value = codec.encode(Reply(id=request_id, outcome=Outcome.COMPLETED))
    producer.produce(settings.topic("replies"), value, request_id.encode(), partition=partition)
    producer.flush()


def find(settings, deadline_s):
    since_s = SystemClock().wall_s() - 60
    return answers.find(settings, ["open", "behind"], settings.topic("replies"), since_s, deadline_s)


def test_an_answer_behind_an_open_transaction_is_unknown_and_not_missing(settings, transaction):
    with pytest.raises(KafkaException) as caught:
        find(settings, 4.0)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT


@pytest.mark.parametrize(("end", "found"), [("commit", {"open", "behind"}), ("abort", {"behind"})])
def test_once_it_ends_all_that_counts_is_found(settings, transaction, end, found):
    getattr(transaction, f"{end}_transaction")(30)
    assert set(find(settings, 30.0)) == found


def test_partitions_without_a_transaction_are_not_waited_for(settings):
    for partition in (0, 1):
        put(settings, clients.producer(settings), "plain", partition)
    reader = clients.reader(settings)
    pending.wait(settings, reader, [TopicPartition(settings.topic("replies"), p) for p in range(2)], 5.0)
    reader.close()


def test_a_topic_that_is_not_there_holds_no_answer(settings):
    assert answers.find(settings, ["plain"], settings.topic("replies.gone"), 0.0, 10.0) == {}
