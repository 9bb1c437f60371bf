"""Reading the balances back from a real broker."""

import contextlib

import msgspec
import pytest
from confluent_kafka import KafkaException

from streams import rebuild
from topics import clients
from topics.notes import Balances

NOW_S = 1_700_000_000.0


@pytest.fixture
def write(settings):
    """Write balances (or bytes) to the topic, at a time of the broker's log."""
    producer = clients.producer(settings)

    def send(record, at_s=NOW_S):
        value = record if isinstance(record, bytes) else msgspec.json.encode(record)
        producer.produce(settings.topic("balances"), value, timestamp=int(at_s * 1000))
        producer.flush(10)

    return send


def balances(at_s, **tenants):
    return Balances(at_s=at_s, by="w", levels={f"tenant:{name}": units for name, units in tenants.items()})


def test_the_newest_level_of_each_bucket_is_found(settings, write):
    write(balances(NOW_S + 1, acme=10.0, blue=20.0))
    write(balances(NOW_S + 3, acme=-5.0))
    write(balances(NOW_S + 2, acme=8.0))
    found = rebuild.read(settings, NOW_S, records=1)
    assert found.levels == {"tenant:acme": (-5.0, NOW_S + 3), "tenant:blue": (20.0, NOW_S + 1)}
    assert found.records == 3


@pytest.mark.parametrize(
    ("since_s", "records", "expected"),
    [
        (NOW_S - 50, 1, {"tenant:new": (3.0, NOW_S)}),
        (NOW_S - 150, 1, {"tenant:new": (3.0, NOW_S), "tenant:old": (2.0, NOW_S - 100)}),
        (NOW_S - 50, 2, {"tenant:new": (3.0, NOW_S), "tenant:old": (2.0, NOW_S - 100)}),
        (NOW_S + 50, 1, {"tenant:new": (3.0, NOW_S)}),
    ],
)
def test_it_is_read_from_a_time_or_a_number_of_records_whichever_is_earlier(
    settings, write, since_s, records, expected
):
    for name, units, age_s in (("eldest", 1.0, 200), ("old", 2.0, 100), ("new", 3.0, 0)):
        write(balances(NOW_S - age_s, **{name: units}), NOW_S - age_s)
    assert rebuild.read(settings, since_s, records).levels == expected


def test_an_empty_log_is_an_empty_ledger(settings):
    for _ in range(50):
        with contextlib.suppress(KafkaException):  # right after its creation a topic may have no leader
            assert rebuild.read(settings, NOW_S, records=1) == rebuild.Found({}, 0)
            return
    raise AssertionError("the topic has no leader")


def test_a_foreign_record_is_passed_over(settings, write):
    write(b"not ours")
    write(b"")
    write(balances(NOW_S, acme=3.0))
    assert rebuild.read(settings, NOW_S, records=1).levels == {"tenant:acme": (3.0, NOW_S)}


def test_a_topic_that_is_not_there_is_not_an_empty_ledger(settings):
    elsewhere = settings.model_copy(update={"topics": settings.topics.model_copy(update={"prefix": "nobody-made-"})})
    with pytest.raises(KafkaException):
        rebuild.read(elsewhere, NOW_S, records=1)


def test_a_broker_that_does_not_answer_is_not_an_empty_ledger(settings, monkeypatch):
    monkeypatch.setattr(rebuild, "_READ_LIMIT_S", 0.2)
    away = settings.model_copy(update={"kafka": {"bootstrap.servers": "127.0.0.1:1"}})
    with pytest.raises(KafkaException):
        rebuild.read(away, NOW_S, records=1)
