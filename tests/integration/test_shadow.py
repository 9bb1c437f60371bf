"""A shadow beside the worker that serves and a real consumer: what it says, and that it moves nothing else."""

import json
import uuid
from contextlib import closing

import pytest
from confluent_kafka import TopicPartition

from streams import beginning
from tests.support.command import one_line_of_json, run
from tests.support.gpu import Consumer
from tests.support.streams_worker import Site, StreamsWorker, chat, send, wait_until
from topics import admin, catalog, clients, codec, keys
from topics.outcomes import Outcome
from topics.records import Length, Priority, Reply

SHADOW = "small"
OTHERWISE = {
    "session_timeout_s": 6,
    "shadow": SHADOW,
    "long_max_tokens": 90,
    "classes": {"tenant_cap": {"lowered": "low"}},
    "tenant_budgets": {
        "cut": {"refill_units_per_s": 1, "burst_s": 1},
        "slowed": {"refill_units_per_s": 60, "burst_s": 1},
    },
}
DEARER = {"llama-3-8b": {"coefficient": 1.5}}
REFUSED = 'rampmeter_shadow_decisions_total{length="",priority="",reason="undecodable",verdict="reject"}'
ASKED = chat(max_tokens=100, simulated_output_tokens=100)
EACH = 4
COUNT = {"cut": EACH, "slowed": 2 * EACH, "lowered": EACH}


@pytest.fixture(scope="module")
def site(broker, redis_server):
    made = Site(broker, redis_server.url, 5)
    yield made
    made.close()


@pytest.fixture(scope="module")
def workers(site, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    others = {"RAMPMETER_STREAMS": json.dumps(OTHERWISE), "RAMPMETER_MODELS": json.dumps(DEARER)}
    ask(site, "earlier")
    serving = StreamsWorker(site.env, logs / "serving.log").start(wait=False)
    shadow = StreamsWorker({**site.env, **others}, logs / "shadow.log").start(wait=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in site.env.items():
            patch.setenv(name, value)
        consumer = Consumer(logs / "gpu.log", engine="simulated", speed=50)
    try:
        for worker in (serving, shadow):
            wait_until(worker.is_ready, 60, worker.log)
        consumer.wait_ready()
        yield serving, shadow
        ended = [worker.stop() for worker in (serving, shadow)]
    finally:
        for process in (consumer.process, serving.process, shadow.process):
            process.kill()
    assert ended == [0, 0]


def ask(site, *tenants, value=ASKED):
    """A request of each, all at once; their ids."""
    ids = [f"{tenant}-{uuid.uuid4().hex[:8]}" for tenant in tenants]
    records = [(value, i.split("-")[0].encode(), [("rampmeter_id", i.encode())], 0) for i in ids]
    send(site.settings, "requests.medium.short", records)
    return ids


def decisions(messages, shadow):
    found = [codec.decode_decision(message.value()) for message in messages]
    return [decision for decision in found if decision.shadow == shadow]


def admission(messages, shadow, ids):
    """The last word of one side by id."""
    return {one.id: one for one in decisions(messages, shadow) if one.stage == "admission" and one.id in ids}


def ledger(site, shadow=None):
    """What lies in Redis under one side's keys."""
    with clients.redis_sync(site.settings) as redis:
        return {key: redis.dump(key) for key in redis.scan_iter(keys.of(site.settings, shadow).all())}


def ends(site, *families):
    """How many records the topics of these families hold."""
    reader = clients.reader(site.settings)
    mine = {site.settings.topic(name) for name in families}
    counts = admin.partition_counts(site.settings)
    names = [name for name in counts if any(name == f or name.startswith(f"{f}.") for f in mine)]
    found = {n: sum(_end(reader, n, p) for p in range(counts[n])) for n in names}
    reader.close()
    return found


def _end(reader, name, partition):
    return reader.get_watermark_offsets(clients.at(name, partition, 0), timeout=10)[1]


def committed(site):
    landing = [catalog.landing(site.settings, priority, length) for priority in Priority for length in Length]
    return [site.committed(name.removeprefix(site.settings.topics.prefix))[0] for name in landing]


def test_a_new_group_begins_behind_what_came_before_and_a_restart_where_it_stopped(site):
    ask(site, "earlier")
    beginning.begin_now(site.settings, "other")
    ask(site, "later")
    beginning.begin_now(site.settings, "other")
    with closing(clients.consumer(site.settings, catalog.streams_group(site.settings, "other"))) as reader:
        place = TopicPartition(site.settings.topic("requests.medium.short"), 0)
        (begun,) = reader.committed([place], timeout=10)
        assert begun.offset == reader.get_watermark_offsets(place, timeout=10)[1] - 1


def test_what_is_served_stays_as_it_was_and_the_diff_tells_what_the_shadow_decides_otherwise(site, workers, tmp_path):
    log, replies = site.log("decisions"), site.log("replies")
    ids = ask(site, *(tenant for tenant, count in COUNT.items() for _ in range(count)))

    def ended(messages):
        real, shadowed = (admission(messages, side, ids) for side in (None, SHADOW))
        settled = {one.id for one in decisions(messages, None) if one.stage == "settlement"}
        is_over = all(one.verdict in {"admit", "reject"} for one in shadowed.values())
        return len(real) == len(shadowed) == len(ids) and is_over and settled >= set(ids)

    log.until(ended, 40)
    found = [codec.decode_answer(message.value()) for message in replies.poll()]
    served = {reply.id: reply for reply in found if isinstance(reply, Reply)}
    assert {served[request_id].outcome for request_id in ids} == {Outcome.COMPLETED}

    real, shadowed = (admission(log.messages, side, ids) for side in (None, SHADOW))
    assert {one.verdict for one in real.values()} == {"admit"}
    rejected = {request_id for request_id, one in shadowed.items() if one.verdict == "reject"}
    assert rejected == {request_id for request_id in ids if request_id.startswith("cut-")}
    words = [one.verdict for one in decisions(log.messages, SHADOW) if one.id.startswith("slowed-")]
    assert "defer" in words  # it comes back without a delay topic
    assert ends(site, "deferred", "dead_letters") == {
        catalog.deferred(site.settings, delay_s): 0 for delay_s in site.settings.topics.defer_delays_s
    } | {site.settings.topic("dead_letters"): 0}

    done = run("shadow-diff", SHADOW, "--json", cwd=tmp_path, env=site.env)
    assert done.returncode == 0, done.stderr
    diff = one_line_of_json(done)
    assert (diff["compared"], diff["waiting"], diff["only_shadow"]) == (len(ids), 0, 0)
    assert diff["only_real"] >= 1  # what came before the shadow
    assert diff["tenants"]["cut"]["changed"] == {"outcome": EACH, "class": 0, "lane": EACH, "price": EACH}
    assert diff["tenants"]["lowered"]["changed"] == {"outcome": 0, "class": EACH, "lane": EACH, "price": EACH}
    assert diff["moves"] == {"admitted -> budget_tenant": EACH}
    slowed = diff["tenants"]["slowed"]
    assert slowed["shadow"]["queued_s"]["p99"] > 1 + slowed["real"]["queued_s"]["p99"]
    assert slowed["shadow"]["priced_units"] == pytest.approx(1.5 * slowed["real"]["priced_units"], rel=0.001)
    assert slowed["shadow"]["used_units"] == pytest.approx(1.5 * slowed["real"]["used_units"], rel=0.001)
    # Nothing ran on the shadow's long lanes, so nothing is known of the wait there.
    assert (slowed["shadow"]["lane_unknown"], slowed["shadow"]["lane_s"]["p50"]) == (2 * EACH, None)
    assert slowed["real"]["lane_s"]["p50"] >= 0

    done = run("audit", "--json", "--pending", "0", cwd=tmp_path, env=site.env)
    assert done.returncode == 0, done.stdout


def test_what_was_admitted_ends_in_the_shadows_ledger_with_what_it_really_used(site, workers):
    (request_id,) = ask(site, "settled")
    with clients.redis_sync(site.settings) as redis:
        states = [
            lambda side=side: redis.hget(keys.of(site.settings, side).reservation(request_id), "state")
            for side in (None, SHADOW)
        ]
        wait_until(lambda: [state() for state in states] == [b"settled"] * 2, 20)
        # Of all that was asked here: what was served before the shadow let it in has ended too.
        named = keys.of(site.settings, SHADOW)
        wait_until(lambda: redis.hlen(named.shares("default")) + redis.zcard(named.expiries()) == 0, 20)


def test_a_shadow_alone_decides_and_moves_nothing_else(site, workers, tmp_path):
    serving, shadow = workers
    assert serving.stop() == 0
    others = ("lanes", "replies", "deferred", "retries", "usage", "dead_letters", "balances", "estimates", "control",
              "rampmeter-streams-spend-changelog")  # fmt: skip
    before = ledger(site), ends(site, *others), committed(site)
    assert before[0]
    log = site.log("decisions")
    ask(site, "cut", value=b"no request")
    ids = ask(site, "cut", "lowered")
    log.until(lambda messages: len({one.id for one in decisions(messages, SHADOW)} & {*ids}) == 2)
    wait_until(lambda: shadow.metric(REFUSED), 30)
    # A ledger that is lost, as on the first start, begins where that of those that serve stands.
    with clients.redis_sync(site.settings) as redis:
        redis.delete(*ledger(site, SHADOW))
        named = keys.of(site.settings, SHADOW)
        wait_until(lambda: redis.hget(named.bucket("tenant", "settled"), "level"), 20)
    assert (ledger(site), ends(site, *others), committed(site)) == before
    assert "rampmeter_streams_decisions_total{" not in shadow.get("/metrics")[1]
    serving.start()
    real = log.until(lambda messages: len(found := admission(messages, None, ids)) == 2 and found)
    assert {one.verdict for one in real.values()} == {"admit"}
