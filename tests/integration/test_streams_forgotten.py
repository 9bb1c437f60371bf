"""A streams worker dies, and Redis forgets what it had decided and not committed: the log is asked."""

from collections import Counter

import pytest

from tests.integration.test_streams_failures import LANDING, LANES, burst, usage
from tests.support.streams_worker import Site, StreamsWorker, answers_by_place, send, wait_until
from topics import clients, codec
from topics.local_redis import LocalRedis

ROOMY = {"refill_units_per_s": 10**6, "burst_s": 100, "warm_up_s": 0}


@pytest.fixture
def redis(tmp_path):
    with LocalRedis(tmp_path / "redis") as started:
        yield started


@pytest.fixture
def site(broker, redis):
    made = Site(broker, redis.url, 4, batch_events=50, tenant_budget=ROOMY)
    yield made
    made.close()


@pytest.fixture
def make_worker(site, tmp_path):
    made = []

    def make(name):
        made.append(StreamsWorker(site.env, tmp_path / f"{name}.log").start())
        return made[-1]

    yield make
    for worker in made:
        if worker.process.poll() is None:
            worker.kill()


def lose_memory(site):
    clients.redis_sync(site.settings).flushall()


def recalled(worker, what):
    return worker.metric(f'rampmeter_streams_recalled_total{{result="{what}"}}')


def until_killed_with_open_commits(site, make_worker, send_more, topics, *effects):
    """Kill workers, each in the midst of its work, until one leaves what it has done and not committed."""
    for n in range(8):
        done = sum(len(log.poll()) for log in effects)
        worker = make_worker(f"first{n}")
        send_more()
        wait_until(lambda done=done: sum(len(log.poll()) for log in effects) > done + 100, 60, worker.log)
        worker.kill()
        lose_memory(site)
        if sum(len(log.poll()) for log in effects) > sum(site.committed(topic)[0] for topic in topics) + 5:
            return
    pytest.fail("each worker had committed all that it did")


def test_no_record_is_answered_a_second_time_or_answered_beside_its_admission(site, make_worker):
    ids, origins = [], []

    def send_more():
        records, named = burst(1000)
        ids.extend(named)
        for topic, some in records.items():
            origins.extend(send(site.settings, topic, some))

    lanes, replies = site.log(*LANES), site.log("replies")
    until_killed_with_open_commits(site, make_worker, send_more, LANDING, lanes, replies)
    second = make_worker("second")

    def reached():
        """Where each record landed: of those on lanes, and how often of those that were answered."""
        works = [codec.decode_work(message.value()) for message in lanes.poll()]
        return {work.request.origin.place for work in works}, answers_by_place(replies)

    def all_has_ended():
        placed, answered = reached()
        return len(placed | answered.keys()) == len(origins) and site.all_is_read(LANDING)

    wait_until(all_has_ended, 90, second.log)
    placed, answered = reached()
    assert set(answered.values()) == {1}
    assert not placed & answered.keys()
    assert {message.key().decode() for message in lanes.messages} == set(ids)
    assert recalled(second, "decided") > 0
    assert second.stop() == 0


def test_no_attempt_is_charged_a_second_time(site, make_worker):
    sent = []

    def send_more():
        numbers = range(len(sent), len(sent) + 2000)
        sent.extend(f"u{n}" for n in numbers)
        send(site.settings, "usage", [(codec.encode(usage(n, "acme")), b"acme", [], n % 2) for n in numbers])

    decisions = site.log("decisions")
    until_killed_with_open_commits(site, make_worker, send_more, ["usage"], decisions)
    second = make_worker("second")
    wait_until(lambda: site.all_is_read(["usage"]), 90, second.log)
    settled = [codec.decode_decision(message.value()) for message in decisions.poll()]
    charged = Counter(one.id for one in settled if one.stage == "settlement" and one.verdict != "repeat")
    assert charged == dict.fromkeys(sent, 1)
    assert recalled(second, "settled") > 0
    assert second.stop() == 0
