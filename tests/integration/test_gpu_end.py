"""SIGTERM to a busy consumer: it ends with status 0 within what `config print` shows, and nothing is lost over it."""

import time

import pytest

from gpu_consumers.settings import Gpu
from tests.support.gpu import wait_until
from tests.support.own_redis import freeze, own_redis, thaw  # noqa: F401 - a fixture
from topics.local_broker import LocalBroker

JOBS = 12
SLOW = {"engine": "simulated", "window_requests": 4, "grace_s": 1}


def start_busy(rig, output_tokens):
    for n in range(JOBS):
        rig.put(rig.work(f"r{n}", output_tokens=output_tokens))
    consumer = rig.start(**SLOW)
    wait_until(lambda: consumer.metric("inflight_requests") == 4, "four run", consumer)
    return consumer


def ends_in_time(consumer):
    """Terminate it; its status and whether it ended within its bound."""
    began_s = time.monotonic()
    status = consumer.terminate()
    return status, time.monotonic() - began_s < Gpu(**SLOW).termination_s


def rest_is_answered(rig):
    consumer = rig.start(engine="simulated", speed=50)
    replies = rig.wait_replies(JOBS, limit_s=60)
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == JOBS, "all is committed", consumer)
    assert len(rig.by_id()) == len(replies) == JOBS


def test_what_the_grace_does_not_let_finish_is_answered_by_the_next_at_once(rig):
    consumer = start_busy(rig, 3000)
    assert ends_in_time(consumer) == (0, True)
    assert rig.replies() == []
    rest_is_answered(rig)
    assert rig.consumers[-1].metric("claims_total", verdict="takeover") == 0, "its claims were given back"


def test_a_second_signal_cuts_the_drain_short(rig):
    for n in range(2):
        rig.put(rig.work(f"r{n}", output_tokens=50_000))
    consumer = rig.start(engine="simulated", grace_s=600)
    wait_until(lambda: consumer.metric("inflight_requests") == 2, "both run", consumer)
    consumer.process.terminate()
    wait_until(lambda: consumer.get("readyz") == (503, "draining\n"), "it drains", consumer)
    assert consumer.terminate() == 0


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_an_end_while_redis_is_away_takes_no_longer_and_loses_nothing(rig, own_redis, monkeypatch, how):  # noqa: F811
    monkeypatch.setenv("RAMPMETER_REDIS__URL", own_redis.url)
    consumer = start_busy(rig, 200)
    freeze(own_redis) if how == "frozen" else own_redis.stop()
    assert ends_in_time(consumer) == (0, True)
    thaw(own_redis) if how == "frozen" else own_redis.start()
    rest_is_answered(rig)


@pytest.mark.slow
def test_an_end_while_kafka_is_away_takes_no_longer_and_loses_nothing(tmp_path, rig_on):
    with LocalBroker(tmp_path / "broker") as broker:
        rig = rig_on(broker)
        consumer = start_busy(rig, 200)
        broker.stop()
        assert ends_in_time(consumer) == (0, True)
        broker.start()
        rest_is_answered(rig)
