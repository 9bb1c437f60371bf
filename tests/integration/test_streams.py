"""One real streams worker on a real broker and Redis, seen through its topics.  One worker serves most tests."""

import json
import os
import subprocess
import sys
import time
import uuid

import pytest
from confluent_kafka.admin import NewTopic

from tests.support.builders import work
from tests.support.streams_worker import Site, StreamsWorker, chat, send, wait_until
from topics import clients, codec, keys
from topics.outcomes import Outcome, Reason
from topics.records import Length, Priority, Reply, ReplyAddress, Tokens, Usage

SENTINEL = "SENTINEL-a-prompt-nobody-may-log"
LANES = [f"lanes.default.{tier}.{length}" for tier in ("high", "medium", "low") for length in ("short", "long")]
AGED = ["lanes.default.aged.short", "lanes.default.aged.long"]


@pytest.fixture(scope="module")
def site(broker, redis_server):
    made = Site(
        broker,
        redis_server.url,
        3,
        max_deferral_s=8,
        aged_after_s=2,
        aged_backlog_records=100_000,
        promote_every_s=0.2,
        classes={"tenant_cap": {"modest": "low"}},
        tenant_budgets={
            "poor": {"refill_units_per_s": 20, "burst_s": 2},
            "broke": {"refill_units_per_s": 1, "burst_s": 100},
        },
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def worker(site, tmp_path_factory):
    made = StreamsWorker(site.env, tmp_path_factory.mktemp("streams") / "streams.log").start()
    yield made
    assert made.stop() == 0


@pytest.fixture
def replies(site, worker):
    return site.log("replies")


@pytest.fixture
def lanes(site, worker):
    return site.log(*LANES)


def answers(messages, wanted):
    """Replies whose origin or id is wanted."""
    found = [codec.decode_answer(message.value()) for message in messages]
    return [reply for reply in found if isinstance(reply, Reply) and (reply.origin in wanted or reply.id in wanted)]


def of_id(messages, request_id):
    return [message for message in messages if message.key() == request_id.encode()]


def new_id():
    return f"r-{uuid.uuid4().hex}"


BAD = {
    "no value": (None, (), Reason.EMPTY_VALUE),
    "empty": (b"", (), Reason.EMPTY_VALUE),
    "bytes": (b"\x00\xff", (), Reason.UNDECODABLE),
    "cut off": (chat(SENTINEL)[:-1], (), Reason.UNDECODABLE),
    "not utf-8 in the text": (b'{"messages":[{"content":"\xff' + SENTINEL.encode() + b'"}]}', (), Reason.UNDECODABLE),
    "wrong shape": (json.dumps({"messages": SENTINEL}).encode(), (), Reason.WRONG_SHAPE),
    "no messages": (json.dumps({"prompt": SENTINEL}).encode(), (), Reason.WRONG_SHAPE),
    "unknown model": (chat(SENTINEL, model="gpt-9"), (), Reason.UNKNOWN_MODEL),
    "absurd max_tokens": (chat(SENTINEL, max_tokens=10**12), (), Reason.MAX_TOKENS),
    "deadline in the past": (chat(SENTINEL), [("rampmeter_deadline_s", b"1000")], Reason.DEADLINE_PASSED),
    "forbidden reply topic": (chat(SENTINEL), [("kafka_replyTopic", b"usage")], Reason.REPLY_TOPIC_FORBIDDEN),
    "unknown priority": (chat(SENTINEL), [("rampmeter_priority", b"urgent")], Reason.UNKNOWN_PRIORITY),
    "tampered id": (chat(SENTINEL), [("rampmeter_id", b"\xff\x00")], Reason.BAD_HEADER),
    "tampered partition": (chat(SENTINEL), [("kafka_replyPartition", b"first")], Reason.BAD_HEADER),
    "too many headers": (chat(SENTINEL), [(f"x{n}", b"") for n in range(65)], Reason.BAD_HEADER),
    "too large a body": (chat(SENTINEL, tools=["x" * 1_050_000]), (), Reason.BODY_TOO_LARGE),
    "too long a prompt": (chat(SENTINEL + "x" * 700_000), (), Reason.CONTEXT_LENGTH),
}  # fmt: skip


def test_each_bad_input_gets_one_answer_and_the_partition_flows_on(site, replies, lanes):
    soon = [("rampmeter_deadline_s", b"%f" % (time.time() + 3))]
    cases = {**BAD, "unreachable deadline": (chat(SENTINEL, max_tokens=16000), soon, Reason.DEADLINE_UNREACHABLE)}
    records = [(value, b"acme", list(headers), 0) for value, headers, _ in cases.values()]
    sent = send(site.settings, "requests.medium.short", records, message_max_bytes=1_190_000)
    origins = {
        (origin.partition, origin.offset): (name, reason)
        for origin, (name, (_, _, reason)) in zip(sent, cases.items(), strict=True)
    }
    last = new_id()
    site.send(chat(), headers=[("rampmeter_id", last.encode())])
    lanes.until(lambda messages: of_id(messages, last))

    def seen(messages):
        found = [codec.decode_answer(m.value()) for m in messages]
        return [r for r in found if r.origin and (r.origin.partition, r.origin.offset) in origins]

    found = replies.until(lambda messages: len(seen(messages)) >= len(origins) and seen(messages))
    got = sorted((origins[r.origin.partition, r.origin.offset][0], r.reason) for r in found)
    assert got == sorted((name, reason) for name, reason in origins.values())
    assert all(reply.outcome.startswith("rejected_") and reply.detail for reply in found)

    letters = [codec.decode_dead_letter(m.value()) for m in site.log("dead_letters").until(lambda found: found)]
    undecodable = {Reason.EMPTY_VALUE, Reason.UNDECODABLE, Reason.WRONG_SHAPE}
    assert sorted((letter.topic, letter.partition, letter.offset, letter.reason) for letter in letters) == sorted(
        (site.settings.topic("requests.medium.short"), partition, offset, reason)
        for (partition, offset), (_, reason) in origins.items()
        if reason in undecodable
    )


def test_a_missing_reply_topic_is_reported_on_the_default_one(site, replies):
    missing = site.settings.topic("replies.gone").encode()
    origin = site.send(chat(), headers=[("kafka_replyTopic", missing), ("kafka_correlationId", b"\x00\xfe")])
    reply = replies.until(lambda messages: answers(messages, [origin]))
    assert [r.reason for r in reply] == [Reason.REPLY_TOPIC_MISSING]
    message = of_id(replies.messages, reply[0].id)[0]
    assert ("kafka_correlationId", b"\x00\xfe") in message.headers()


@pytest.mark.parametrize("priority", ["high", "medium", "low"])
def test_a_good_request_lies_on_its_lane_byte_for_byte(site, lanes, priority):
    request_id = new_id()
    body = b'{ "messages":[{"content" : "\\u00e9 \xc3\xa9 ' + SENTINEL.encode() + b'"}],\n "max_tokens":5, "x":[1.50] }'
    site.send(body, f"requests.{priority}.short", headers=[("rampmeter_id", request_id.encode())])
    message = lanes.until(lambda messages: of_id(messages, request_id))[0]
    on_lane = codec.decode_work(message.value())
    assert message.topic() == site.settings.topic(f"lanes.default.{priority}.short")
    assert bytes(on_lane.request.body) == body
    assert float(dict(message.headers())["rampmeter_cost"]) == on_lane.price.cost_units
    assert on_lane.request.tenant == "acme"


def test_another_models_work_lies_on_the_lanes_of_its_pool(site, worker):
    request_id = new_id()
    site.send(chat(model="smollm2-135m", max_tokens=5), headers=[("rampmeter_id", request_id.encode())])
    cpu = site.log("lanes.cpu.medium.short")
    assert cpu.until(lambda messages: of_id(messages, request_id))


@pytest.mark.parametrize(
    ("landing", "fields", "key", "headers", "lane"),
    [
        ("requests.medium.short", {"max_tokens": 1000}, b"acme", (), "medium.long"),
        ("requests.medium.long", {"max_tokens": 5}, b"acme", (), "medium.short"),
        ("requests.medium.short", {"max_tokens": 5, "text": "x" * 20_000}, b"acme", (), "medium.long"),
        ("requests.high.short", {"max_tokens": 5}, b"modest", (), "low.short"),
        ("requests.high.short", {"max_tokens": 5}, b"acme", [("rampmeter_source", b"background")], "low.short"),
        ("requests.low.short", {"max_tokens": 5}, b"acme", [("rampmeter_priority", b"high")], "high.short"),
    ],
)
def test_wrong_claims_are_corrected(site, lanes, landing, fields, key, headers, lane):
    request_id = new_id()
    site.send(chat(**fields), landing, key, [*headers, ("rampmeter_id", request_id.encode())])
    message = lanes.until(lambda messages: of_id(messages, request_id))[0]
    assert message.topic() == site.settings.topic(f"lanes.default.{lane}")


@pytest.mark.parametrize("codec_name", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_any_compression_is_understood(site, lanes, codec_name):
    ids = [new_id() for _ in range(50)]
    records = [(chat("x" * 500), b"acme", [("rampmeter_id", request_id.encode())], 1) for request_id in ids]
    send(site.settings, "requests.low.short", records, compression_type=codec_name, linger_ms=50)
    lanes.until(lambda messages: {request_id.encode() for request_id in ids} <= {m.key() for m in messages})


def test_what_the_budget_cannot_pay_yet_comes_back_and_is_admitted(site, lanes):
    ids = [new_id() for _ in range(3)]  # 27 units each of 40, refilled by 20 a second
    records = [(chat(max_tokens=100), b"poor", [("rampmeter_id", request_id.encode())], 0) for request_id in ids]
    send(site.settings, "requests.medium.short", records)
    lanes.until(lambda messages: {request_id.encode() for request_id in ids} <= {m.key() for m in messages}, 20)
    found = [codec.decode_work(of_id(lanes.messages, request_id)[0].value()) for request_id in ids]
    assert found[0].deferrals == 0
    assert found[-1].deferrals >= 1
    assert [len(of_id(lanes.messages, request_id)) for request_id in ids] == [1, 1, 1]


def test_what_would_wait_too_long_is_rejected_with_the_time_to_come_again(site, replies):
    request_id = new_id()  # 81 units of 100, and the new bucket has none and gets 1 a second
    site.send(chat(max_tokens=300), "requests.medium.long", b"broke", [("rampmeter_id", request_id.encode())])
    reply = replies.until(lambda messages: answers(messages, [request_id]))[0]
    assert (reply.outcome, reply.reason) == (Outcome.REJECTED_BUDGET, Reason.BUDGET_TENANT)
    assert 78 < reply.retry_after_s < 85
    assert reply.cost_units == pytest.approx(81, abs=1)


def test_what_costs_more_than_a_budget_can_hold_is_too_large(site, replies):
    origin = site.send(chat(max_tokens=2000), key=b"broke")
    assert replies.until(lambda messages: answers(messages, [origin]))[0].outcome is Outcome.REJECTED_TOO_LARGE


def answer_as_a_consumer(site, reply):
    """The reply, then its usage, which tells admission that the id is answered."""
    send(site.settings, "replies", [(codec.encode(reply), reply.id.encode(), [], 0)])
    send(site.settings, "usage", [(codec.encode(usage(reply.id, "acme")), b"acme", [], 0)])


def test_a_repeated_id_is_admitted_once_and_gets_a_copy_of_the_first_answer(site, lanes, replies):
    request_id = new_id()
    headers = [("rampmeter_id", request_id.encode())]
    site.send(chat(), headers=headers)
    message = lanes.until(lambda messages: of_id(messages, request_id))[0]
    second = site.send(chat(), headers=headers, partition=1)
    first = Reply(id=request_id, outcome=Outcome.COMPLETED, tokens=Tokens(prompt=3, output=4))
    answer_as_a_consumer(site, first)
    copy = replies.until(lambda messages: [r for r in answers(messages, [second]) if r.repeat])
    assert [(r.outcome, r.tokens, r.origin) for r in copy] == [(first.outcome, first.tokens, second)]
    assert of_id(lanes.poll(), request_id) == [message]


def test_a_repeat_that_names_another_reply_topic_gets_the_copy_there(site, lanes, worker):
    other = "replies.other"
    name = site.settings.topic(other)
    admin = clients.admin(site.settings)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    request_id = new_id()
    headers = [("rampmeter_id", request_id.encode())]
    site.send(chat(), headers=headers)
    lanes.until(lambda messages: of_id(messages, request_id))
    answer_as_a_consumer(site, Reply(id=request_id, outcome=Outcome.COMPLETED))
    elsewhere = [*headers, ("kafka_replyTopic", site.settings.topic(other).encode())]

    def copy():  # the worker learns of new topics every 10 s
        site.send(chat(), headers=elsewhere)
        time.sleep(1)
        return [r for r in answers(there.poll(), [request_id]) if r.repeat]

    there = site.log(other)
    assert wait_until(copy, 20)[0].outcome is Outcome.COMPLETED


def test_garbage_on_the_reply_topic_does_not_stop_a_repeat(site, lanes, replies, worker):
    request_id = new_id()
    headers = [("rampmeter_id", request_id.encode())]
    site.send(chat(), headers=headers)
    lanes.until(lambda messages: of_id(messages, request_id))
    first = Reply(id=request_id, outcome=Outcome.COMPLETED)
    send(site.settings, "replies", [(b"\xff not an answer", request_id.encode(), [], 0)])
    answer_as_a_consumer(site, first)
    second = site.send(chat(), headers=headers)

    def copies(messages):
        readable = [m for m in messages if m.value().startswith(b"{")]
        return [r for r in answers(readable, [second]) if r.repeat]

    assert replies.until(copies)


def usage(request_id, tenant="acme", output=10):
    return Usage(
        id=request_id, tenant=tenant, pool="default", model="llama-3-8b", priority=Priority.MEDIUM,
        length=Length.SHORT, outcome=Outcome.COMPLETED, attempt=1, reserved_units=1.0,
        tokens=Tokens(prompt=2, output=output), finished_s=time.time(), consumer="c",
    )  # fmt: skip


def test_usage_settles_the_reservation_and_fills_the_spend_table(site, worker, lanes):
    request_id = new_id()
    site.send(chat(max_tokens=100), key=b"settled", headers=[("rampmeter_id", request_id.encode())])
    lanes.until(lambda messages: of_id(messages, request_id))
    redis = clients.redis_sync(site.settings)
    bucket = keys.of(site.settings).bucket("tenant", "settled")
    reserved = float(redis.hget(bucket, "level"))
    records = [(codec.encode(usage(request_id, "settled")), b"settled", [], 0)] * 2 + [(b"garbage", b"settled", [], 0)]
    send(site.settings, "usage", records)
    wait_until(lambda: redis.hget(keys.of(site.settings).reservation(request_id), "state") == b"settled", 20)
    cap = 600_000
    assert reserved < cap - 20
    assert float(redis.hget(bucket, "level")) > reserved
    changelog = site.log("rampmeter-streams-spend-changelog")
    rows = changelog.until(lambda found: [m for m in found if b"spend|settled|llama-3-8b" in m.key()])
    assert json.loads(rows[-1].value())["output_tokens"] >= 10


def test_waiting_work_is_copied_to_the_aged_tier_once_and_never_when_claimed(site, worker, lanes):
    waiting, claimed = new_id(), new_id()
    clients.redis_sync(site.settings).hset(keys.of(site.settings).claim(claimed), "state", "running")
    for request_id in (waiting, claimed):
        site.send(chat(), "requests.low.short", headers=[("rampmeter_id", request_id.encode())])
    original = lanes.until(lambda messages: of_id(messages, waiting))[0]
    aged = site.log(*AGED)
    copy = aged.until(lambda messages: of_id(messages, waiting))[0]
    assert copy.value() == original.value()
    time.sleep(1.5)
    assert len(of_id(aged.poll(), waiting)) == 1
    assert of_id(aged.messages, claimed) == []
    promoted = site.log("decisions").until(
        lambda found: [d for m in found if (d := codec.decode_decision(m.value())).stage == "promotion"]
    )
    assert waiting in {decision.id for decision in promoted}


def test_offsets_of_a_transactional_sender_are_committed_to_the_end(site, worker, lanes):
    sender = clients.producer(site.settings, transactional_id=new_id(), delivery_timeout_ms=30_000)
    sender.init_transactions()
    ids = [new_id() for _ in range(12)]
    topic = site.settings.topic("requests.high.long")
    for start in range(0, len(ids), 3):
        sender.begin_transaction()
        for request_id in ids[start : start + 3]:
            sender.produce(topic, chat(), b"acme", headers=[("rampmeter_id", request_id.encode())], partition=0)
        sender.commit_transaction()
    lanes.until(lambda messages: {request_id.encode() for request_id in ids} <= {m.key() for m in messages})
    # The last marker has no record behind it that could be acknowledged.
    wait_until(lambda: (spot := site.committed("requests.high.long")) and spot[0] >= spot[1] - 1, 15)


def test_an_internal_record_that_is_garbage_is_buried_and_does_not_stop_its_agent(site, worker, lanes):
    request_id = new_id()
    address = ReplyAddress(topic=site.settings.topic("replies"))
    deferred = codec.encode(work({"id": request_id, "reply": address, "arrived_s": time.time()}))
    records = [(b"garbage", b"k", [], 0), (None, b"k", [], 0), (deferred, b"k", [], 0)]
    send(site.settings, "deferred.1s", records)
    send(site.settings, "retries.1s", records)
    lanes.until(lambda messages: len(of_id(messages, request_id)) == 2)


def test_a_live_worker_says_so_and_ends_up_with_no_prompt_in_its_records(site, worker):
    assert worker.get("/livez") == (200, "ok\n")
    request_id = new_id()
    site.send(chat(SENTINEL, model="gpt-9"), headers=[("rampmeter_id", request_id.encode())])
    log = site.log("decisions", "dead_letters", "replies")
    log.until(lambda messages: of_id([m for m in messages if m.topic() == site.settings.topic("replies")], request_id))
    records = log.messages
    text = worker.log() + worker.get("/metrics")[1]
    assert SENTINEL not in text
    assert not any(SENTINEL.encode() in (message.value() or b"") for message in records)
    assert "Traceback" not in worker.log()


def test_records_of_aborted_transactions_are_never_admitted(site, worker, lanes):
    sender = clients.producer(site.settings, transactional_id=new_id(), delivery_timeout_ms=30_000)
    sender.init_transactions()
    aborted, after = new_id(), new_id()
    topic = site.settings.topic("requests.high.short")
    for request_id in (aborted, after):
        sender.begin_transaction()
        sender.produce(topic, chat(), b"acme", headers=[("rampmeter_id", request_id.encode())], partition=1)
        sender.flush()
        if request_id is aborted:
            sender.abort_transaction()
        else:
            sender.commit_transaction()
    lanes.until(lambda messages: of_id(messages, after))
    assert of_id(lanes.messages, aborted) == []


HOSTILE_SENDER = """
import asyncio, sys
from aiokafka import AIOKafkaProducer

class NotUtf8(str):
    def encode(self, *_):
        return b"\\xff\\xfe"

async def main():
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1]) as sender:
        await sender.send_and_wait(sys.argv[2], b"{}", headers=[(NotUtf8("xx"), b"1")], partition=1)

asyncio.run(main())
"""


def test_a_header_name_that_is_not_utf_8_does_not_stop_its_partition(site, worker, lanes):
    servers, topic = site.settings.kafka["bootstrap.servers"], site.settings.topic("requests.low.long")
    env = {**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"}  # the extension would refuse to send it
    subprocess.run([sys.executable, "-c", HOSTILE_SENDER, servers, topic], env=env, check=True)
    after = new_id()
    site.send(chat(max_tokens=900), "requests.low.long", headers=[("rampmeter_id", after.encode())], partition=1)
    lanes.until(lambda messages: of_id(messages, after))
