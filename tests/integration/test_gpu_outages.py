"""Redis or Kafka going away under a running consumer; each test has servers of its own to stop."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.gpu import wait_until
from topics import admin, clients
from topics.local_broker import LocalBroker
from topics.local_redis import LocalRedis
from topics.outcomes import Outcome, Reason


@pytest.fixture
def own_redis(settings, tmp_path, monkeypatch):
    with LocalRedis(tmp_path / "redis") as running:
        monkeypatch.setenv("RAMPMETER_REDIS__URL", running.url)
        monkeypatch.setenv("RAMPMETER_REDIS__TIMEOUT_S", "0.5")
        yield running


def wait_turns(seconds):
    """Let this time of an outage pass, with a look in between now and then."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        yield
        time.sleep(0.2)


def test_while_redis_is_away_nothing_new_runs_and_nothing_is_lost(rig, own_redis):
    consumer = rig.start(engine="simulated", window_requests=4, stall_s=1).wait_ready()
    for n in range(8):
        rig.put(rig.work(f"r{n}", output_tokens=150))
    wait_until(lambda: consumer.metric("inflight_requests") == 4, "four run", consumer)
    own_redis.stop()
    wait_until(lambda: consumer.metric("redis_available") == 0, "the outage is seen", consumer)
    assert consumer.get("readyz") == (503, "Redis does not answer\n")
    # Longer than the lease, than the four need, and than a stall.
    assert all(consumer.get("livez")[0] == 200 for _ in wait_turns(3.5))
    assert len(rig.by_id()) <= 4
    own_redis.start()  # empty: its memory is gone
    assert len(rig.wait_replies(8)) == 8
    wait_until(lambda: consumer.get("readyz")[0] == 200, "it is ready again", consumer)
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == 8, "all is committed", consumer)
    assert len(rig.by_id()) == 8


@pytest.mark.behaviour(10)
def test_a_frozen_consumer_that_wakes_up_gives_no_second_answer(rig, redis_server):
    for n in range(16):
        rig.put(rig.work(f"r{n}", output_tokens=100))
    frozen = rig.start(engine="simulated", window_requests=8)
    wait_until(lambda: frozen.metric("inflight_requests") == 8, "eight run", frozen)
    os.kill(frozen.process.pid, signal.SIGSTOP)
    rig.start(engine="simulated", speed=10)
    rig.wait_replies(16)
    os.kill(frozen.process.pid, signal.SIGCONT)
    wait_until(lambda: frozen.metric("fenced_total") == 8, "its results are dropped", frozen)
    dropped = lambda: [usage for usage in rig.usages() if usage.partial]  # noqa: E731
    wait_until(lambda: len(dropped()) == 8, "what they used is told", frozen)
    assert all(usage.tokens.output > 0 for usage in dropped())
    assert len(rig.by_id()) == 16
    assert frozen.terminate() == 0


@pytest.mark.behaviour(12)
def test_a_broker_that_goes_away_costs_nothing_and_holds_up_no_end(tmp_path, rig_on):
    with LocalBroker(tmp_path / "broker") as broker:
        rig = rig_on(broker)
        consumer = rig.start(engine="simulated", window_requests=4, stall_s=4).wait_ready()
        for n in range(8):
            rig.put(rig.work(f"r{n}", output_tokens=100))
        wait_until(lambda: consumer.metric("inflight_requests") == 4, "four run", consumer)
        broker.stop()
        wait_until(lambda: consumer.get("readyz") == (503, "Kafka does not answer\n"), "it is noticed", consumer)
        assert all(consumer.get("livez")[0] == 200 for _ in wait_turns(10.0))
        broker.start()
        assert len(rig.wait_replies(8)) == 8
        wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == 8, "all is committed", consumer)
        assert len(rig.by_id()) == 8
        broker.stop()
        started_s = time.monotonic()
        assert consumer.terminate() == 0
        assert time.monotonic() - started_s < 20


def test_what_cannot_be_dead_lettered_is_not_committed_and_its_neighbours_are_answered(rig, hosted):
    """Behaviour 19."""
    hosted.server.status = 500
    consumer = rig.start(engine="openai", openai_base_url=hosted.server.url, max_attempts=1).wait_ready()
    topic = rig.settings.topic("dead_letters")
    deleting = clients.admin(rig.settings)  # named, since the call dies with it
    deleting.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in admin.partition_counts(rig.settings), "the topic is gone")
    rig.put(rig.work("bad"), partition=0)
    rig.put_bytes(b"not json", "k", partition=1)
    wait_until(lambda: consumer.metric("dead_letters_total") == 2, "both are given up", consumer)
    hosted.server.status = 200
    rig.put(rig.work("r1"), partition=0)
    rig.put(rig.work("r2"), partition=1)
    replies = rig.wait_replies(3)
    assert (replies["bad"].reason, replies["r1"].outcome, replies["r2"].outcome) == (
        Reason.ATTEMPTS_EXHAUSTED, Outcome.COMPLETED, Outcome.COMPLETED,
    )  # fmt: skip
    wait_until(lambda: "send_again" in consumer.log(), "it is tried again", consumer)
    assert all(tp.offset == 0 for _ in wait_turns(3) for tp in rig.committed().values())
    admin.apply(rig.settings)
    wait_until(lambda: len(rig.dead_letters()) == 2, "the dead letters", consumer)
    assert {(letter.partition, letter.offset, letter.id) for letter in rig.dead_letters()} == {
        (0, 0, "bad"),
        (1, 0, None),
    }
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == 4, "all is committed", consumer)
    assert len(rig.by_id()) == 3


@pytest.mark.parametrize(
    "delivery_s",
    [pytest.param(1, marks=pytest.mark.slow, id="waiting to be sent again"), pytest.param(4, id="waiting to be sent")],
)
@pytest.mark.slow
def test_answers_that_waited_for_the_broker_in_a_frozen_consumer_are_not_given_again(delivery_s, tmp_path, rig_on):
    with LocalBroker(tmp_path / "broker") as broker:
        rig = rig_on(broker)
        frozen = rig.start(engine="simulated", window_requests=4, delivery_s=delivery_s).wait_ready()
        for n in range(4):
            rig.put(rig.work(f"r{n}", output_tokens=100))
        wait_until(lambda: frozen.metric("inflight_requests") == 4, "four run", frozen)
        os.kill(broker.pid, signal.SIGKILL)
        wait_until(lambda: frozen.metric("settling_requests") == 4, "four have ended", frozen)
        wait_until(lambda: delivery_s > 1 or "send_again" in frozen.log(), "they are taken back", frozen)
        os.kill(frozen.process.pid, signal.SIGSTOP)
        broker.stop()
        broker.start()
        rig.start(engine="simulated", speed=10)
        assert len(rig.wait_replies(4)) == 4
        os.kill(frozen.process.pid, signal.SIGCONT)
        wait_until(lambda: frozen.metric("fenced_total") == 4, "its answers are dropped", frozen)
        assert frozen.terminate() == 0
        assert len(rig.by_id()) == 4


@pytest.mark.behaviour(30)
def test_a_second_consumer_with_the_same_instance_id_ends_and_says_why_and_the_first_goes_on(rig, monkeypatch):
    monkeypatch.setenv("RAMPMETER_KAFKA__GROUP_INSTANCE_ID", "one")
    first = rig.start().wait_ready()
    second = rig.start()
    assert second.process.wait(30) == 70
    assert "The instance ID is still used by another member" in second.log()
    assert "RAMPMETER_KAFKA__GROUP_INSTANCE_ID" in second.log()
    assert "Look at the broker" not in second.log()
    rig.put(rig.work("r1"))
    wait_until(lambda: len(rig.replies()) == 1, "the first answers", first)


def start_and_end(**env):
    return subprocess.run(
        [sys.executable, "-m", "gpu_consumers"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


def test_redis_down_at_start_is_said_and_exits_69(settings):
    done = start_and_end(RAMPMETER_REDIS__URL="redis://127.0.0.1:9/0")
    assert done.returncode == 69
    assert "Redis does not answer" in done.stderr


def test_wrong_partition_counts_are_said_with_both_numbers_and_exit_78(settings):
    done = start_and_end(RAMPMETER_POOLS='{"default": {"lane_partitions": 7}, "cpu": {"lane_partitions": 1}}')
    assert done.returncode == 78
    assert "has 2 partitions, the settings want 7" in done.stderr


def test_impossible_settings_are_all_named_and_exit_78(settings):
    done = start_and_end(RAMPMETER_GPU__SPEED="-1", RAMPMETER_GPU__WINDOW_REQUESTS="many", RAMPMETER_GPU__TYPO="1")
    assert done.returncode == 78
    for name in ("RAMPMETER_GPU__SPEED", "RAMPMETER_GPU__WINDOW_REQUESTS", "RAMPMETER_GPU__TYPO"):
        assert name in done.stderr


def test_a_lease_shorter_than_two_renewals_is_refused(settings):
    done = start_and_end(RAMPMETER_GPU__LEASE_S="3", RAMPMETER_GPU__RENEW_S="2")
    assert done.returncode == 78
    assert "renew_s" in done.stderr
