"""A streams worker whose dependencies, process or topics fail."""

import threading
import time
import uuid
from collections import Counter

import pytest
from confluent_kafka.admin import NewPartitions

from tests.support.streams_worker import Site, StreamsWorker, chat, free_port, send, wait_until
from topics import clients, codec, keys
from topics.local_broker import LocalBroker
from topics.local_redis import LocalRedis
from topics.outcomes import Outcome
from topics.records import Length, Priority, Tokens, Usage

LANES = [f"lanes.default.{tier}.{length}" for tier in ("high", "medium", "low") for length in ("short", "long")]
LANDING = [f"requests.{priority}.{length}" for priority in ("high", "low") for length in ("short", "long")]


@pytest.fixture
def make_site(broker, redis_server):
    made = []

    def make(redis_url=redis_server.url, **streams):
        made.append(Site(broker, redis_url, 4, **streams))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def make_worker(tmp_path):
    made = []

    def make(env, name="worker"):
        made.append(StreamsWorker(env, tmp_path / f"{name}.log"))
        return made[-1]

    yield make
    for worker in made:
        if worker.process is not None and worker.process.poll() is None:
            worker.kill()


@pytest.fixture(scope="module", autouse=True)
def without_kafka(redis_server, tmp_path_factory):
    """Started first and looked at last, since it waits 10 s for Kafka."""
    port = free_port()
    env = {"RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{port}", "RAMPMETER_REDIS__URL": redis_server.url}
    worker = StreamsWorker(env, tmp_path_factory.mktemp("without_kafka") / "worker.log").start(wait=False)
    yield worker, port
    worker.kill()


def burst(count):
    """Good ones, refused ones and unreadable ones; the good ones have ids."""
    records = {topic: [] for topic in LANDING}
    ids = []
    for number in range(count):
        target = records[LANDING[number % len(LANDING)]]
        kind = number % 10
        if kind == 7:
            target.append((chat(model="gpt-9"), b"acme", [], number % 2))
        elif kind == 8:
            target.append((b"\xff", b"acme", [], number % 2))
        else:
            ids.append(f"b{number}-{uuid.uuid4().hex[:6]}")
            target.append((chat(max_tokens=1), b"acme", [("rampmeter_id", ids[-1].encode())], number % 2))
    return records, ids


def check_every_record_has_one_effect(site, ids, origins, timeout_s=60):
    """Each id is reserved once and on a lane; each other record has exactly one reply; each unreadable one a letter."""
    lanes, replies = site.log(*LANES), site.log("replies")
    expected = {(origin.topic, origin.partition, origin.offset) for origin in origins}

    def settled():
        on_lanes = {message.key().decode() for message in lanes.poll()}
        answered = replies.poll()
        return set(ids) <= on_lanes and len(on_lanes) + len(answered) >= len(expected)

    wait_until(settled, timeout_s, lambda: f"{len(lanes.messages)} on lanes, {len(replies.messages)} replies")
    placed = {codec.decode_work(message.value()).request.origin for message in lanes.messages}
    answers = [codec.decode_answer(message.value()) for message in replies.messages]
    per_origin = Counter((a.origin.topic, a.origin.partition, a.origin.offset) for a in answers)
    assert set(per_origin.values()) <= {1}, "a record was answered twice"
    reached = {(origin.topic, origin.partition, origin.offset) for origin in placed}
    assert reached | set(per_origin) == expected
    assert reached & set(per_origin) == set()
    unreadable = {(a.origin.topic, a.origin.partition, a.origin.offset) for a in answers if a.reason == "undecodable"}
    letters = site.log("dead_letters")
    letters.until(lambda messages: unreadable == {place(m) for m in messages})
    redis = clients.redis_sync(site.settings)
    spent = sum(float(redis.hget(keys.of(site.settings).reservation(request_id), "units")) for request_id in ids)
    level = float(redis.hget(keys.of(site.settings).bucket("tenant", "acme"), "level"))
    assert level == pytest.approx(10**9 - spent, abs=1), "some id was charged twice"


def place(message):
    letter = codec.decode_dead_letter(message.value())
    return letter.topic, letter.partition, letter.offset


FIXED = {"tenant_budgets": {"acme": {"refill_units_per_s": 0.001, "burst_s": 10**12}}, "batch_events": 50}


def fill(site):
    """Give the tenant all that its bucket holds: by itself it would take an age."""
    full = {"level": 10**9, "as_of": time.time(), "born": 0, "refill": 0.001, "cap": 10**9, "warm": 1, "paced": "0"}
    clients.redis_sync(site.settings).hset(keys.of(site.settings).bucket("tenant", "acme"), mapping=full)


def test_a_worker_killed_in_mid_burst_loses_and_doubles_nothing(make_site, make_worker):
    site = make_site(**FIXED)
    fill(site)
    worker = make_worker(site.env).start()
    records, ids = burst(3000)
    origins = []
    sending = threading.Thread(
        target=lambda: [origins.extend(send(site.settings, topic, some)) for topic, some in records.items()]
    )
    sending.start()
    lanes = site.log(*LANES)
    lanes.until(lambda messages: len(messages) > 400)
    worker.kill()
    sending.join()
    assert len(lanes.poll()) < len(ids), "the kill came too late to show anything"
    second = make_worker(site.env, "second").start()
    check_every_record_has_one_effect(site, ids, origins)
    assert second.stop() == 0
    assert "Traceback" not in second.log()


@pytest.mark.slow
def test_a_second_worker_that_joins_and_leaves_in_mid_burst_loses_and_doubles_nothing(make_site, make_worker):
    site = make_site(**FIXED)
    fill(site)
    first, second = make_worker(site.env, "first").start(), make_worker(site.env, "second").start(wait=False)
    records, ids = burst(3000)
    origins = []
    for topic, some in records.items():
        for start in range(0, len(some), 250):
            origins += send(site.settings, topic, some[start : start + 250])
            if start == 500 and topic == LANDING[1]:
                wait_until(second.is_ready, 60)
            if start == 500 and topic == LANDING[2]:
                assert second.stop() == 0
    check_every_record_has_one_effect(site, ids, origins)
    assert first.stop() == 0
    assert "Traceback" not in first.log() + second.log()


def test_wrong_partition_counts_stop_the_start_and_name_both_numbers(make_site, make_worker):
    site = make_site()
    topic = site.settings.topic("usage")
    admin = clients.admin(site.settings)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result()
    worker = make_worker(site.env).start(wait=False)
    assert worker.process.wait(60) == 78
    assert f"topic {topic} has 5 partitions, the settings want 2" in worker.log()


def test_redis_down_at_the_start_is_69_with_the_address(make_site, make_worker):
    site = make_site()
    port = free_port()
    worker = make_worker({**site.env, "RAMPMETER_REDIS__URL": f"redis://:hunter2@127.0.0.1:{port}/0"})
    worker.start(wait=False)
    assert worker.process.wait(60) == 69
    assert f"127.0.0.1:{port}" in worker.log()
    assert "RAMPMETER_REDIS__URL" in worker.log()
    assert "hunter2" not in worker.log()


def test_invalid_settings_are_78_all_at_once(make_site, make_worker):
    site = make_site()
    env = {**site.env, "RAMPMETER_STREAMS__POLICY": "lifo", "RAMPMETER_REDIS__TIMEOUT_S": "0"}
    worker = make_worker(env).start(wait=False)
    assert worker.process.wait(60) == 78
    assert {"RAMPMETER_STREAMS__POLICY", "RAMPMETER_REDIS__TIMEOUT_S"} <= set(worker.log().split())


def test_a_closed_class_waits_while_redis_is_away_and_goes_on_with_it(make_site, make_worker, tmp_path):
    redis = LocalRedis(tmp_path / "redis")
    redis.start()
    try:
        site = make_site(redis.url, degrade={"high": "closed"})
        worker = make_worker(site.env).start()
        lanes = site.log(*LANES)
        site.send(chat(), headers=[("rampmeter_id", b"before")])
        lanes.until(lambda messages: [m for m in messages if m.key() == b"before"])
        redis.stop()
        during = [f"during-{number}" for number in range(100)]
        records = [(chat(), b"acme", [("rampmeter_id", request_id.encode())], 0) for request_id in during]
        send(site.settings, "requests.high.short", records)
        wait_until(lambda: worker.metric("rampmeter_streams_redis_available") == 0.0, 20)
        assert worker.get("/livez")[0] == 200
        assert worker.get("/readyz") == (503, "Redis does not answer; each class goes by its degrade mode\n")
        assert [m for m in lanes.poll() if m.key().startswith(b"during")] == []
        redis.start()
        lanes.until(lambda messages: {i.encode() for i in during} <= {m.key() for m in messages}, 30)
        wait_until(worker.is_ready, 30)
        assert worker.stop() == 0
    finally:
        redis.stop()


def test_a_worker_ends_when_asked_although_redis_is_away(make_site, make_worker, tmp_path):
    with LocalRedis(tmp_path / "redis") as redis:
        site = make_site(redis.url)
        worker = make_worker(site.env).start()
    site.send(chat(), headers=[("rampmeter_id", b"shared")])
    wait_until(lambda: worker.metric("rampmeter_streams_redis_available") == 0.0, 20)
    lanes = site.log(*LANES)
    lanes.until(lambda messages: [m for m in messages if m.key() == b"shared"])
    assert worker.stop() == 0
    assert site.committed("requests.medium.short")[0] == 1


def test_a_broker_that_restarts_in_mid_run_costs_nothing(make_worker, redis_server, tmp_path):
    with LocalBroker(tmp_path / "broker") as broker:
        site = Site(broker, redis_server.url, 4)
        worker = make_worker(site.env).start()
        lanes = site.log(*LANES)
        before, after = ([f"{when}-{n}" for n in range(200)] for when in ("before", "after"))
        for ids in (before, after):
            records = [(chat(), b"acme", [("rampmeter_id", request_id.encode())], 0) for request_id in ids]
            send(site.settings, "requests.high.short", records)
            if ids is before:
                broker.stop()
                broker.start()
        lanes.until(lambda messages: {i.encode() for i in before + after} <= {m.key() for m in messages}, 60)
        wait_until(worker.is_ready, 30)
        assert worker.stop() == 0


def usage(number, tenant):
    return Usage(
        id=f"u{number}", tenant=tenant, pool="default", model="llama-3-8b", priority=Priority.HIGH,
        length=Length.SHORT, outcome=Outcome.COMPLETED, attempt=1, reserved_units=1.0,
        tokens=Tokens(prompt=2, output=5), finished_s=1.0, consumer="c",
    )  # fmt: skip


def test_expired_windows_are_gone_after_a_restart(make_site, make_worker):
    site = make_site(spend_window_s=1, spend_kept_s=4, history={"window_s": 1, "kept_s": 4})
    changelog = "rampmeter-streams-spend-changelog"
    first = make_worker(site.env, "first").start()
    send(site.settings, "usage", [(codec.encode(usage(n, f"t{n}")), b"t", [], n % 2) for n in range(20)])
    site.log(changelog).until(lambda messages: len(messages) >= 20)
    assert first.stop() == 0
    last = make_worker(site.env, "last").start()
    wait_until(lambda: last.metric("rampmeter_streams_spend_rows") == 0.0, 20)
    assert last.stop() == 0


def test_a_failing_handler_ends_the_process_before_anything_is_committed(make_site, make_worker):
    site = make_site()
    clients.redis_sync(site.settings).set(keys.of(site.settings).bucket("tenant", "acme"), "not a bucket")
    worker = make_worker(site.env).start()
    site.send(chat(), headers=[("rampmeter_id", b"poison")])
    assert worker.process.wait(30) == 70
    assert site.committed("requests.medium.short")[0] == 0
    clients.redis_sync(site.settings).delete(keys.of(site.settings).bucket("tenant", "acme"))
    second = make_worker(site.env, "second").start()
    site.log(*LANES).until(lambda messages: [m for m in messages if m.key() == b"poison"])
    assert second.stop() == 0


def test_kafka_down_at_the_start_is_69_with_the_address(without_kafka):
    worker, port = without_kafka
    assert worker.process.wait(30) == 69
    assert f"(127.0.0.1:{port})" in worker.log()
    assert "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS" in worker.log()
    assert "Traceback" not in worker.log()
