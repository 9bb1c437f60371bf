"""What is committed when, by the numbers of `tests/unit/test_behaviours.py`."""

import random
import time

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from autoscaler.backlog import BacklogReader
from tests.support.commit_log import Commits, taken_back
from tests.support.gpu import wait_until
from topics import catalog, clients, codec, keys, offset_map
from topics.clock import SystemClock


@pytest.fixture
def history(rig):
    """The partition's commits so far."""
    with Commits(rig.settings, catalog.gpu_group(rig.settings, "default")) as made:
        yield lambda: made.of(rig.lane(), 0)


@pytest.fixture
def commits(history):
    """The same; at the end of the test none may have taken another back."""
    yield history
    assert taken_back(history()) == []


def commit(rig, offset, metadata=""):
    member = clients.consumer(rig.settings, catalog.gpu_group(rig.settings, "default"))
    member.commit(offsets=[TopicPartition(rig.lane(), 0, offset, metadata=metadata)], asynchronous=False)
    member.close()


def wait_committed(commits, offset, consumer, *finished):
    """Until this is the position, and the commit lists these beyond it."""
    done = lambda last: last.offset == offset and all(map(last.is_finished, finished))  # noqa: E731
    wait_until(lambda: any(done(last) for last in commits()[-1:]), f"{offset} is committed", consumer)
    return commits()[-1]


def put_with_heads(rig, count, heads):
    """Records of which the heads take minutes and the others a moment."""
    rig.put(*(rig.work(f"r{n}", output_tokens=40_000 if n in heads else 2) for n in range(count)), partition=0)


@pytest.mark.behaviour(1)
@pytest.mark.behaviour(2)
@pytest.mark.parametrize("is_fresh", [True, False])
def test_a_slow_head_is_run_again_after_a_kill_and_nothing_that_finished_behind_it(rig, commits, is_fresh):
    if not is_fresh:
        commit(rig, 0)
    put_with_heads(rig, 51, heads={0})
    first = rig.start(engine="simulated")
    rig.wait_replies(50)
    wait_committed(commits, 0, first, 50)
    assert {one.offset for one in commits()} == {0}
    first.kill()
    second = rig.start(engine="simulated", speed=1000)
    assert sorted(rig.wait_replies(51)) == sorted(f"r{n}" for n in range(51))
    wait_committed(commits, 51, second)
    assert second.metric("claims_total") == second.metric("claims_total", verdict="takeover") == 1


@pytest.mark.behaviour(3)
def test_of_two_heads_the_lower_one_is_committed(rig, commits):
    put_with_heads(rig, 20, heads={4, 9})
    consumer = rig.start(engine="simulated")
    rig.wait_replies(18)
    last = wait_committed(commits, 4, consumer, 19)
    assert offset_map.decode(4, last.metadata) == [(5, 8), (10, 19)]
    rig.cancel("r4")
    wait_committed(commits, 9, consumer, 19)
    rig.cancel("r9")
    wait_committed(commits, 20, consumer)


def hold(rig, ids):
    """Claim them for a consumer that never ends."""
    fields = {"state": "running", "owner": "another", "attempt": 1, "since_ms": 0}
    fields["lease_until_ms"] = int((time.time() + 600) * 1000)
    with clients.redis_sync(rig.settings) as redis, redis.pipeline() as pipe:
        for request_id in ids:
            pipe.hset(keys.of(rig.settings).claim(request_id), mapping=fields)
        pipe.execute()


def let_go(rig, ids):
    with clients.redis_sync(rig.settings) as redis:
        redis.delete(*(keys.of(rig.settings).claim(request_id) for request_id in ids))


@pytest.mark.behaviour(4)
@pytest.mark.timeout(240)
def test_a_map_that_fills_up_stops_the_fetch_survives_a_restart_and_lets_it_go_on(rig, history):
    ids = [f"r{n}" for n in range(1300)]
    holes = random.Random(1).sample(ids, 650)
    hold(rig, holes)
    for request_id in ids:
        rig.producer.produce(rig.lane(), value=codec.encode(rig.work(request_id)), key=b"k", partition=0)
    rig.producer.flush()
    small = {"commit_map_bytes": 180, "commit_interval_s": 0.05, "buffer_records": 16, "poll_records": 8}
    for _ in range(2):
        consumer = rig.start(**small, held_retry_s=5).wait_ready()
        wait_until(
            lambda: any(len(last.metadata) > 180 * 3 / 4 for last in history()[-1:]), "the map is crowded", consumer
        )
        for metric, value in (("queued_requests", 0), ("paused_partitions", 1)):
            wait_until(lambda c=consumer, m=metric, v=value: c.metric(m) == v, f"{metric} is {value}", consumer)
        assert consumer.terminate() == 0
        assert "log_reset" not in consumer.log()
    assert 0 < len(rig.by_id()) < 650
    let_go(rig, holes)
    last = rig.start(**small)
    wait_committed(history, 1300, last)
    assert sorted(rig.wait_replies(1300)) == sorted(ids)
    assert (last.metric("claims_total", verdict="done") or 0) < 120  # what a slow broker let in is cut from the map
    assert max(len(one.metadata) for one in history()) <= 180
    offsets = [one.offset for one in history()]
    assert offsets == sorted(offsets)


def test_a_map_of_the_greatest_length_is_taken_and_a_longer_one_is_not(rig):
    commit(rig, 0, "x" * offset_map.MAX_BYTES)
    assert rig.committed()[0].metadata == "x" * offset_map.MAX_BYTES
    with pytest.raises(KafkaException) as refused:
        commit(rig, 0, "x" * (offset_map.MAX_BYTES + 1))
    assert refused.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE


@pytest.mark.behaviour(6)
def test_what_aborted_and_committed_transactions_leave_in_a_lane_stops_no_commit_and_is_no_backlog(rig, commits):
    sender = clients.producer(
        rig.settings, delivered_within_s=30, transactional_id=f"{rig.settings.topics.prefix}sender"
    )
    sender.init_transactions()
    for names, is_kept in ((["r0", "r1"], True), (["x0", "x1"], False), (["r2"], True), (["x2"], False)):
        sender.begin_transaction()
        for name in names:
            sender.produce(rig.lane(), value=codec.encode(rig.work(name)), key=b"k", partition=0)
        sender.flush()
        sender.commit_transaction() if is_kept else sender.abort_transaction()
    consumer = rig.start()
    assert sorted(rig.wait_replies(3)) == ["r0", "r1", "r2"]
    wait_committed(commits, 7, consumer)  # behind r2 lie only a marker and what was aborted
    with BacklogReader(rig.settings, SystemClock(), timeout_s=10.0) as reader:
        assert reader.read("default").lag_records == 0
    rig.put(rig.work("r3"), partition=0)
    wait_committed(commits, 11, consumer)
    assert sorted(rig.by_id()) == ["r0", "r1", "r2", "r3"]
