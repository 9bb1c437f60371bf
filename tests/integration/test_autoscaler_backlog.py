"""The backlog of a pool on a real broker."""

import dataclasses
import time

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from autoscaler.backlog import GONE_S, BacklogReader
from rampmeter import lag
from tests.support.builders import work
from tests.support.clock import FakeClock
from topics import catalog, clients, codec, offset_map
from topics.clock import SystemClock
from topics.errors import LagUnavailable
from topics.records import Length, Tier
from topics.settings import Settings


@pytest.fixture
def lane(settings):
    return catalog.lane(settings, "default", Tier.HIGH, Length.SHORT)


@pytest.fixture
def reader(settings):
    lag.read(settings)  # waits until the topics, just created, have leaders
    with BacklogReader(settings, SystemClock(), timeout_s=5.0) as made:
        yield made


def put(settings, lane, count, partition=0, cost_units=50.0, age_s=0.0, header=True):
    """Put work on a lane and return the wall time it carries."""
    producer, at_s = clients.producer(settings, enable_idempotence=False), time.time() - age_s
    for number in range(count):
        record = work({"id": f"r{number}"}, {"cost_units": cost_units})
        headers = [("rampmeter_cost", f"{cost_units}".encode())] if header else []
        producer.produce(
            lane, codec.encode(record), b"r", partition, timestamp=int(at_s * 1000), headers=headers
        )  # fmt: skip
    assert producer.flush(10) == 0
    return at_s


def commit(settings, lane, offset, partition=0, metadata=""):
    group, admin = catalog.gpu_group(settings, "default"), clients.admin(settings)
    committed = ConsumerGroupTopicPartitions(group, [TopicPartition(lane, partition, offset, metadata)])
    admin.alter_consumer_group_offsets([committed])[group].result(10)


def delete_before(settings, lane, offset):
    """What retention does, at once."""
    admin = clients.admin(settings)
    (future,) = admin.delete_records([TopicPartition(lane, 0, offset)]).values()
    future.result(10)


def test_an_idle_pool_has_no_backlog(reader):
    backlog = reader.read("default")
    assert (backlog.lag_records, backlog.cost_units, backlog.oldest_age_s) == (0, 0.0, 0.0)
    assert len(backlog.lanes) == 8


def test_without_a_commit_everything_since_the_start_of_the_log_waits(settings, lane, reader):
    put(settings, lane, 10, partition=0)
    put(settings, lane, 5, partition=1)
    backlog = reader.read("default")
    assert backlog.lag_records == 15
    assert backlog.cost_units == pytest.approx(15 * 50.0)


def test_a_group_that_is_gone_is_no_reading_and_is_believed_after_a_while(settings, lane):
    clock = FakeClock()
    put(settings, lane, 3)
    commit(settings, lane, 3)
    lag.read(settings)
    with BacklogReader(settings, clock, timeout_s=5.0) as reader:
        assert reader.read("default").lag_records == 0
        group, admin = catalog.gpu_group(settings, "default"), clients.admin(settings)
        admin.delete_consumer_groups([group])[group].result(10)
        for _ in range(2):
            with pytest.raises(LagUnavailable, match="has lost its commits on 1 partitions"):
                reader.read("default")
            clock.advance(GONE_S - 1)
        clock.advance(1)
        assert reader.read("default").lag_records == 3


def test_committed_records_do_not_wait(settings, lane, reader):
    put(settings, lane, 10)
    commit(settings, lane, 7)
    assert reader.read("default").lag_records == 3
    commit(settings, lane, 10)
    assert reader.read("default").lag_records == 0


def test_finished_records_beyond_the_commit_do_not_wait(settings, lane, reader):
    put(settings, lane, 10)
    commit(settings, lane, 2, metadata=offset_map.encode(2, [(4, 6), (8, 8)]))
    assert reader.read("default").lag_records == 4


def test_foreign_metadata_counts_everything_beyond_the_commit(settings, lane, reader):
    put(settings, lane, 10)
    commit(settings, lane, 2, metadata="somebody else's")
    assert reader.read("default").lag_records == 8


@pytest.mark.parametrize("committed", [None, 3])
def test_records_that_retention_took_do_not_wait(settings, lane, reader, committed):
    put(settings, lane, 10)
    if committed is not None:
        commit(settings, lane, committed)
    delete_before(settings, lane, 6)
    backlog = reader.read("default")
    assert backlog.lag_records == 4
    assert backlog.cost_units == pytest.approx(200.0)


def test_a_pool_without_history_left_is_idle(settings, lane, reader):
    put(settings, lane, 10)
    delete_before(settings, lane, 10)
    assert reader.read("default").lag_records == 0


def test_the_age_is_that_of_the_oldest_unfinished_record(settings, lane, reader):
    first_s = put(settings, lane, 1, age_s=100.0)
    second_s = put(settings, lane, 1, age_s=40.0)
    third_s = put(settings, lane, 1, partition=1, age_s=10.0)
    for committed, oldest_s in [(None, first_s), (1, second_s), (2, third_s)]:
        if committed is not None:
            commit(settings, lane, committed)
        age_s = reader.read("default").oldest_age_s
        assert age_s == pytest.approx(time.time() - oldest_s, abs=1.0)


def test_the_age_of_an_idle_lane_that_gets_a_burst_starts_at_the_burst(settings, lane, reader):
    put(settings, lane, 1, age_s=1000.0)
    commit(settings, lane, 1)
    assert reader.read("default").oldest_age_s == 0.0
    burst_s = put(settings, lane, 20, age_s=2.0)
    age_s = reader.read("default").oldest_age_s
    assert age_s == pytest.approx(time.time() - burst_s, abs=1.0)


def test_lanes_have_costs_of_their_own(settings, lane, reader):
    put(settings, lane, 10, cost_units=5.0)
    put(settings, catalog.lane(settings, "default", Tier.LOW, Length.LONG), 10, cost_units=500.0)
    assert reader.read("default").cost_units == pytest.approx(5050.0)


def test_without_the_header_the_price_in_the_record_counts(settings, lane, reader):
    put(settings, lane, 10, cost_units=7.0, header=False)
    assert reader.read("default").cost_units == pytest.approx(70.0)


def test_cost_that_was_never_read_is_unknown_and_not_zero(settings, lane, reader):
    producer = clients.producer(settings, enable_idempotence=False)
    producer.produce(lane, b"not work", partition=0)
    producer.flush(10)
    with pytest.raises(LagUnavailable, match="cost"):
        reader.read("default")


def test_the_cost_of_records_that_never_wait_is_learnt_too(settings, lane, reader):
    put(settings, lane, 5)
    commit(settings, lane, 5)
    reader.read("default")
    put(settings, lane, 5, cost_units=80.0)
    commit(settings, lane, 10)
    (read,) = [each for each in reader.read("default").lanes if each.topic == lane]
    assert (read.lag_records, read.mean_units, read.appended_records) == (0, 80.0, 10)


def test_markers_of_transactions_do_not_wait(settings, lane, reader):
    producer = clients.producer(settings, transactional_id=settings.topic("test"), delivery_timeout_ms=30_000)
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(lane, codec.encode(work()), partition=0, headers=[("rampmeter_cost", b"50")])
    producer.flush(10)
    assert reader.read("default").lag_records == 0
    producer.commit_transaction(10)
    commit(settings, lane, 1)
    assert reader.read("default").lag_records == 0


def test_a_broker_that_is_away_is_no_reading(settings):
    away = settings.model_copy(update={"kafka": {"bootstrap.servers": "127.0.0.1:1"}})
    with BacklogReader(away, SystemClock(), timeout_s=0.5) as made, pytest.raises(LagUnavailable, match="default"):
        made.read("default")


@pytest.fixture
def wider(settings):
    """Settings of more partitions than the lanes have."""
    pools = {**settings.pools, "default": settings.pools["default"].model_copy(update={"lane_partitions": 3})}
    return settings.model_copy(update={"pools": pools})


def test_a_missing_partition_is_no_reading(settings, wider, lane):
    put(settings, lane, 3)
    with BacklogReader(wider, SystemClock(), timeout_s=2.0) as made, pytest.raises(LagUnavailable):
        made.read("default")


def test_the_lag_command_reads_all_pools(settings: Settings, lane):
    put(settings, lane, 10, age_s=5.0)
    rows = lag.read(settings)
    assert len(rows) == 16
    (busy,) = [row for row in rows if row.lag_records]
    assert dataclasses.asdict(busy) | {"oldest_age_s": 5} == {
        "pool": "default",
        "tier": "high",
        "length": "short",
        "lag_records": 10,
        "cost_units": 500.0,
        "oldest_age_s": 5,
    }
    table = lag.render(rows).splitlines()
    assert len(table) == 1 + 16 + 2
    assert len({len(line) for line in table}) == 1
