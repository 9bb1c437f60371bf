"""Redis freezes, and then forgets everything, while two streams workers admit under load."""

import contextlib
import os
import signal
import threading
import time
import uuid
from collections import defaultdict
from urllib.parse import urlsplit

import pytest

from autoscaler.settings import AutoscalerSettings
from rampmeter.hindsight import replay
from rampmeter.hindsight.redecide import Books
from tests.support.streams_worker import Site, StreamsWorker, chat, wait_until
from topics import catalog, clients, codec
from topics.local_redis import LocalRedis
from topics.records import Length, Priority, Reply

OUTAGE_S = 6.0
TIMEOUT_S = 0.25
LOCAL_RATIO = 0.5
TENANT_RATE = 400.0
"""Units a second of each tenant's budget; the load asks for about twice of it."""
PER_S = 30.0
TENANTS = ("a", "b", "c", "d")
LANES = [f"lanes.default.{tier}.short" for tier in ("high", "low")]


class Load(threading.Thread):
    """Requests of two classes from four tenants, at a steady pace, until it is told to stop."""

    def __init__(self, settings):
        super().__init__(daemon=True)
        self.sent = {}
        self.over = threading.Event()
        self._settings = settings

    def run(self):
        sender = clients.producer(self._settings, linger_ms=1)
        body = chat("x" * 400, max_tokens=90)
        number = 0
        while not self.over.wait(1 / (PER_S * len(TENANTS))):
            tenant, priority = TENANTS[number % 4], (Priority.HIGH, Priority.LOW)[number // 4 % 2]
            identity = f"{priority}-{tenant}-{uuid.uuid4().hex}"
            self.sent[identity] = time.time()
            sender.produce(
                catalog.landing(self._settings, priority, Length.SHORT), body, tenant,
                headers=[("rampmeter_id", identity.encode())],
            )  # fmt: skip
            sender.poll(0)
            number += 1
        assert sender.flush(30) == 0


@pytest.fixture
def redis(tmp_path):
    with LocalRedis(tmp_path / "redis") as running:
        yield running
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGCONT)


@pytest.fixture
def site(broker, redis):
    plenty = {"refill_units_per_s": 1e6, "warm_up_s": 0}
    made = Site(
        broker, redis.url, 0, max_deferral_s=20, global_budget=plenty, pool_budget=plenty,
        class_budgets=dict.fromkeys(Priority, plenty), long_cost_units=1e6,
        tenant_budget={"refill_units_per_s": TENANT_RATE, "burst_s": 5, "warm_up_s": 0},
        degrade={"timeout_s": TIMEOUT_S, "local_ratio": LOCAL_RATIO},
    )  # fmt: skip
    yield made
    made.close()


@pytest.fixture
def workers(site, tmp_path):
    made = [StreamsWorker(site.env, tmp_path / f"streams-{n}.log").start() for n in range(2)]
    yield made
    for worker in made:
        worker.stop()


def degraded(workers):
    return [worker.metric("rampmeter_streams_redis_degraded") for worker in workers]


def placed(lanes):
    """(id, landing time, lane time, cost) of what lies on the lanes."""
    for message in lanes.poll():
        work = codec.decode_work(message.value())
        yield work.request.id, work.request.arrived_s, message.timestamp()[1] / 1000, work.price.cost_units


@pytest.mark.alone
@pytest.mark.timeout(240)
def test_a_frozen_and_then_an_empty_redis_cost_no_request_and_bounded_time(site, workers, redis):
    assert urlsplit(redis.url).port
    lanes, replies = site.log(*LANES), site.log("replies")
    load = Load(site.settings)
    load.start()
    wait_until(lambda: len(lanes.poll()) > 200, 40)
    assert degraded(workers) == [0, 0]

    os.kill(redis.pid, signal.SIGSTOP)
    frozen_s = time.time()
    wait_until(lambda: degraded(workers) == [1, 1], 5)
    time.sleep(OUTAGE_S - (time.time() - frozen_s))
    os.kill(redis.pid, signal.SIGCONT)
    back_s = time.time()
    wait_until(lambda: degraded(workers) == [0, 0], 10)
    assert time.time() - back_s < 2.0

    time.sleep(2)
    clients.redis_sync(site.settings).flushall()
    flushed_s = time.time()
    wait_until(lambda: any(landed > flushed_s + 2 for _, landed, _, _ in placed(lanes)), 20)
    load.over.set()
    load.join()

    def ended():
        answered = {codec.decode_answer(m.value()).id for m in replies.poll()}
        return set(load.sent) <= answered | {identity for identity, *_ in placed(lanes)}

    wait_until(ended, 60, lambda: f"{len(load.sent)} sent, {len(replies.messages)} replies")
    decided = [codec.decode_decision(m.value()) for m in site.log("decisions").poll()]
    _check_latency(decided, frozen_s, back_s)
    _check_classes_and_shares(list(placed(lanes)), frozen_s, back_s)
    refused = [codec.decode_answer(m.value()) for m in replies.poll()]
    assert all(isinstance(reply, Reply) and reply.retry_after_s is not None for reply in refused)
    assert len({reply.id for reply in refused}) == len(refused)
    books = Books(site.settings, AutoscalerSettings())
    replayed = replay.run(books, books, 0.0)
    assert replayed.differences == []
    assert replayed.other_settings == 0
    assert {"local_share", "closed"} <= {decision.inputs.get("mode") for decision in decided}


def _check_latency(decided, frozen_s, back_s):
    """From landing to the first decision, of all that landed while Redis was silent."""
    first = {}
    for decision in decided:
        if decision.stage == "admission":
            first[decision.id] = min(decision.at_s, first.get(decision.id, decision.at_s))
    landed = {d.id: d.inputs["arrived_s"] for d in decided if d.stage == "admission"}
    waits_s = sorted(first[i] - at for i, at in landed.items() if frozen_s < at < back_s)
    assert len(waits_s) > OUTAGE_S * PER_S
    assert waits_s[int(0.99 * len(waits_s))] <= 2 * TIMEOUT_S


def _check_classes_and_shares(records, frozen_s, back_s):
    """While Redis was silent only the classes that may were placed, and no more than the workers' shares."""
    during = [r for r in records if frozen_s + 2 * TIMEOUT_S <= r[2] <= back_s - 0.1]
    assert len(during) > 50
    assert {identity.split("-")[0] for identity, *_ in during} == {"high"}
    spent = defaultdict(float)
    for identity, _, _, units in during:
        spent[identity.split("-")[1]] += units
    assert max(spent.values()) <= LOCAL_RATIO * TENANT_RATE * (back_s - frozen_s + 1)
