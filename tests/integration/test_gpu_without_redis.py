"""Redis is frozen or killed while work runs and comes: it waits, or goes on without claims."""

import pytest

from tests.support.gpu import wait_until
from tests.support.own_redis import freeze, own_redis, thaw  # noqa: F401 - a fixture

AWAY = pytest.mark.parametrize("how", ["frozen", "killed"])


def put(rig, first, last, **fields):
    works = [rig.work(f"r{n}", **fields) for n in range(first, last)]
    rig.put(*works)
    return works


def go(server, how):
    freeze(server) if how == "frozen" else server.stop()


def come_back(server, how):
    thaw(server) if how == "frozen" else server.start()


def committed(rig, count, consumer):
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == count, f"{count} committed", consumer)


@pytest.fixture
def redis_away(own_redis, monkeypatch):  # noqa: F811
    monkeypatch.setenv("RAMPMETER_REDIS__URL", own_redis.url)
    monkeypatch.setenv("RAMPMETER_REDIS__TIMEOUT_S", "0.5")
    return own_redis


@AWAY
def test_what_runs_goes_on_and_is_answered_once_when_redis_is_back(rig, redis_away, how):
    consumer = rig.start(engine="simulated", window_requests=4).wait_ready()
    put(rig, 0, 8, output_tokens=400)  # longer than the lease
    wait_until(lambda: consumer.metric("inflight_requests") == 4, "four run", consumer)
    go(redis_away, how)
    # They end past their leases: nobody can tell whether another has taken them over.
    wait_until(lambda: consumer.metric("settling_requests") == 4, "their answers wait", consumer)
    assert consumer.metric("inflight_requests") == 0
    come_back(redis_away, how)
    rig.wait_replies(8)
    committed(rig, 8, consumer)
    assert len(rig.by_id()) == 8


@AWAY
def test_work_goes_on_without_claims_and_redis_is_told_when_it_is_back(rig, redis_away, how):
    consumer = rig.start(without_redis="run", delivery_s=1).wait_ready()
    go(redis_away, how)
    works = put(rig, 0, 8)
    rig.wait_replies(8)
    committed(rig, 8, consumer)
    assert consumer.metric("claims_total", verdict="unclaimed") == 8
    assert consumer.get("readyz")[0] == 200
    come_back(redis_away, how)
    wait_until(lambda: "redis_back" in consumer.log(), "it is seen", consumer)
    rig.put(*works)
    put(rig, 8, 12)
    rig.wait_replies(12)
    committed(rig, 20, consumer)
    assert consumer.metric("claims_total", verdict="unclaimed") == 8
    assert len(rig.by_id()) == 12


def test_an_answer_of_another_is_found_before_one_is_given_without_a_claim(rig, redis_away):
    first = rig.start(without_redis="run").wait_ready()
    go(redis_away, "killed")
    works = put(rig, 0, 8)
    rig.wait_replies(8)
    assert first.terminate() == 0
    second = rig.start(without_redis="run")
    rig.put(*works)
    committed(rig, 16, second)
    assert second.metric("fenced_total") == 8
    assert len(rig.by_id()) == 8
