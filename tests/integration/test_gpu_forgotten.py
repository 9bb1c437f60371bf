"""Redis loses its memory: what was answered and not committed is not answered again, what runs goes on."""

import pytest

from tests.support.gpu import wait_until
from topics import clients

JOBS = 60
BUSY = {"engine": "simulated", "window_requests": 8, "delivery_s": 1}
"""A claim is told again within five seconds."""


@pytest.fixture
def redis(settings):
    with clients.redis_sync(settings) as client:
        yield client


def put_jobs(rig):
    for n in range(JOBS):
        rig.put(rig.work(f"r{n}", output_tokens=60))


def all_is_answered_once(rig, consumer):
    rig.wait_replies(JOBS, limit_s=90)
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == JOBS, "all is committed", consumer)
    assert len(rig.by_id()) == JOBS


@pytest.mark.slow
def test_answers_that_were_not_committed_are_found_in_the_log(rig, redis):
    put_jobs(rig)
    first = rig.start(**BUSY, commit_interval_s=600)
    rig.wait_replies(20)
    redis.flushdb()
    first.kill()
    answered = len(rig.replies())
    second = rig.start(**BUSY)
    all_is_answered_once(rig, second)
    assert second.metric("claims_total", verdict="forgotten") >= answered


def test_a_loss_under_load_and_a_killed_consumer_give_no_second_answer(rig, redis):
    put_jobs(rig)
    first, second = (rig.start(**BUSY, commit_interval_s=5) for _ in range(2))
    rig.wait_replies(20)
    redis.flushdb()
    rig.wait_replies(21)
    first.kill()
    all_is_answered_once(rig, second)
    assert "claims_forgotten" in second.log()
    assert second.terminate() == 0


def test_a_copy_of_what_was_answered_before_the_loss_gets_no_answer_of_its_own(rig, redis):
    consumer = rig.start(delivery_s=1)
    work = rig.work("r1")
    rig.put(work, partition=0)
    rig.wait_replies(1)
    redis.flushdb()
    wait_until(lambda: "claims_forgotten" in consumer.log(), "the loss is noticed", consumer)
    rig.put(work, partition=1)
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == 2, "both are committed", consumer)
    assert len(rig.replies()) == 1
