import json
import time

import pytest
from confluent_kafka import TopicPartition

from tests.support.gpu import text_of, wait_until
from topics import catalog, clients, codec, keys
from topics.outcomes import Outcome, Reason
from topics.records import Chunk, Length, Reply, ReplyAddress, Tier


@pytest.fixture
def redis(settings):
    with clients.redis_sync(settings) as client:
        yield client


def ids(count, prefix="r"):
    return [f"{prefix}{n}" for n in range(count)]


def test_every_work_of_every_lane_is_answered_once_and_settled(rig, redis):
    lanes = catalog.lanes(rig.settings, "default")
    for n, request_id in enumerate(ids(80)):
        rig.put(rig.work(request_id), lane=lanes[n % len(lanes)])
    consumer = rig.start()
    replies = rig.wait_replies(80)
    assert sorted(replies) == sorted(ids(80))
    one = replies["r0"]
    assert (one.outcome, one.tenant, one.pool, one.attempt) == (Outcome.COMPLETED, "acme", "default", 1)
    assert one.cost_units == pytest.approx(0.067 * 100 + 0.27)
    assert one.origin.topic == "requests.medium.short"
    assert one.timing.started_s <= one.timing.first_token_s <= one.timing.finished_s
    assert text_of(one) == "ok"
    wait_until(lambda: len(rig.usages()) == 80, "usage of all", consumer)
    assert {usage.id for usage in rig.usages()} == set(ids(80))
    committed = lambda: sum(tp.offset for lane in lanes for tp in rig.committed(lane).values())  # noqa: E731
    wait_until(lambda: committed() == 80, "all offsets are committed", consumer)
    claim = redis.hgetall(keys.of(rig.settings).claim("r0"))
    assert claim[b"state"] == b"done"
    assert claim[b"topic"].decode() == rig.settings.topic("replies")
    assert int(claim[b"offset"]) >= 0
    assert consumer.get("livez")[0] == 200
    assert consumer.metric("requests_total", outcome="completed") == 80
    assert consumer.metric("gpu_memory_used_ratio") is None or consumer.metric("gpu_memory_used_ratio") > 0


@pytest.mark.behaviour(21)
def test_the_reply_goes_where_it_was_asked_and_echoes_the_correlation(rig):
    reply = ReplyAddress(
        topic=rig.settings.topic("replies"),
        partition=1,
        correlation_b64="AP8=",
        correlation_header="kafka_correlationId",
    )
    rig.put(rig.work("r1", reply=reply))
    rig.start()
    rig.wait_replies(1)
    message = rig.read("replies")[0]
    assert (message.partition(), message.key()) == (1, b"r1")
    assert dict(message.headers())["kafka_correlationId"] == b"\x00\xff"


def test_a_streamed_answer_is_chunks_in_order_and_then_one_reply(rig):
    rig.put(rig.work("r1", stream=True, output_tokens=30))
    rig.start(engine="simulated", speed=10)
    rig.wait_replies(1)
    answers = rig.answers()
    chunks = [answer for answer in answers if isinstance(answer, Chunk)]
    assert isinstance(answers[-1], Reply)
    assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))
    assert len(chunks) > 3
    deltas = [json.loads(bytes(chunk.data))["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == text_of(answers[-1])


def test_a_stream_that_begins_again_tells_which_chunks_are_of_its_answer(rig):
    rig.put(rig.work("r1", stream=True, output_tokens=200))
    first = rig.start(engine="simulated", speed=0.5)
    wait_until(lambda: len(rig.answers()) > 5, "it streams", first)
    first.kill()
    rig.start(engine="simulated", speed=10)
    reply = rig.wait_replies(1)["r1"]
    chunks = [answer for answer in rig.answers() if isinstance(answer, Chunk)]
    mine = [chunk for chunk in chunks if (chunk.attempt, chunk.consumer) == (reply.attempt, reply.consumer)]
    assert 0 < len(mine) < len(chunks)
    assert [chunk.seq for chunk in mine] == list(range(reply.chunks))
    deltas = [json.loads(bytes(chunk.data))["choices"][0]["delta"].get("content", "") for chunk in mine]
    assert "".join(deltas) == text_of(reply)


def test_after_kill_9_another_consumer_takes_over_and_nothing_is_lost_or_doubled(rig):
    for request_id in ids(120):
        rig.put(rig.work(request_id, output_tokens=60))
    first = rig.start(engine="simulated", window_requests=8)
    rig.wait_replies(20)
    first.kill()
    rig.start(engine="simulated", speed=10)
    assert sorted(rig.wait_replies(120)) == sorted(ids(120))
    time.sleep(1)
    assert len(rig.by_id()) == 120


@pytest.mark.behaviour(7)
@pytest.mark.slow
def test_a_consumer_that_joins_while_jobs_run_doubles_nothing(rig):
    for request_id in ids(150):
        rig.put(rig.work(request_id, output_tokens=60))
    first = rig.start(engine="simulated", window_requests=8, drain_deadline_s=0.2)
    rig.wait_replies(5)
    second = rig.start(engine="simulated", window_requests=8)
    assert sorted(rig.wait_replies(150)) == sorted(ids(150))
    assert second.metric("requests_total") > 0
    assert first.terminate() == 0
    assert second.terminate() == 0
    assert len(rig.by_id()) == 150


@pytest.mark.behaviour(7)
def test_a_long_request_does_not_hold_up_one_that_joins_and_is_answered_once(rig):
    lane = rig.lane(length=Length.LONG)
    for partition, request_id in enumerate(ids(2)):
        rig.put(rig.work(request_id, output_tokens=1500), lane=lane, partition=partition)
    first = rig.start(engine="simulated", drain_deadline_s=40)
    wait_until(lambda: first.metric("inflight_requests") == 2, "both run", first)
    second = rig.start(engine="simulated")
    wait_until(lambda: second.metric("owned_partitions"), "partitions move", second, limit_s=15)
    assert first.metric("inflight_requests") == 2
    assert sorted(rig.wait_replies(2)) == ids(2)
    wait_until(lambda: sum(tp.offset for tp in rig.committed(lane).values()) == 2, "both are committed", second)
    assert [usage.partial for usage in rig.usages()] == [False, False]
    assert sorted(rig.by_id()) == ids(2)


@pytest.mark.behaviour(11)
def test_sigterm_drains_what_runs_and_leaves_the_rest_to_others(rig):
    for request_id in ids(12):
        rig.put(rig.work(request_id, output_tokens=150))
    consumer = rig.start(engine="simulated", window_requests=4, consumer_id="one")
    wait_until(lambda: consumer.metric("inflight_requests") == 4, "four run", consumer)
    assert consumer.terminate() == 0
    answered = rig.wait_replies(4)
    assert len(answered) < 12
    states = [telemetry.state for telemetry in rig.telemetry() if telemetry.consumer == "one"]
    assert "draining" in states
    assert states[-1] == "gone"
    rig.start(engine="simulated", speed=10)
    assert sorted(rig.wait_replies(12, limit_s=15)) == sorted(ids(12))


def test_undecodable_lane_records_reach_the_dead_letters_and_the_lane_flows_on(rig):
    rig.put_bytes(b"\xff\x00 not json", "bad", partition=0)
    rig.put_bytes(b'{"request": 1}', "bad", partition=0)
    rig.put_bytes(b"", "bad", partition=0)
    rig.put(rig.work("good"), partition=0)
    consumer = rig.start()
    rig.wait_replies(1)
    wait_until(lambda: len(rig.dead_letters()) == 3, "dead letters", consumer)
    assert {(letter.offset, letter.reason) for letter in rig.dead_letters()} == {
        (0, Reason.UNDECODABLE),
        (1, Reason.WRONG_SHAPE),
        (2, Reason.EMPTY_VALUE),
    }
    assert {letter.topic for letter in rig.dead_letters()} == {rig.lane()}
    wait_until(lambda: rig.committed()[0].offset == 4, "the offsets are committed", consumer)


def test_work_past_its_deadline_expires_and_is_refunded(rig):
    rig.put(rig.work("late", deadline_s=time.time() - 1), rig.work("good"))
    consumer = rig.start()
    late = rig.wait_replies(2)["late"]
    assert (late.outcome, late.reason) == (Outcome.EXPIRED, Reason.DEADLINE_PASSED)
    wait_until(lambda: len(rig.usages()) == 2, "usage", consumer)
    usage = next(usage for usage in rig.usages() if usage.id == "late")
    assert (usage.tokens.prompt, usage.tokens.output, usage.reserved_units) == (0, 0, 100.0)


def test_buffered_work_expires_while_every_slot_is_busy(rig):
    consumer = rig.start(engine="simulated", window_requests=1).wait_ready()
    rig.put(rig.work("busy", output_tokens=400))
    wait_until(lambda: consumer.metric("inflight_requests") == 1, "it runs", consumer)
    deadline_s = time.time() + 0.5
    rig.put(rig.work("late", deadline_s=deadline_s))
    late = rig.wait_replies(1)["late"]
    assert late.outcome is Outcome.EXPIRED
    assert deadline_s <= late.timing.finished_s < deadline_s + 0.5
    assert rig.wait_replies(2)["busy"].outcome is Outcome.COMPLETED


@pytest.mark.slow
def test_work_behind_the_bound_of_the_buffer_expires_once_it_is_fetched_and_never_runs(rig):
    deadline_s = time.time() + 4
    behind = [rig.work("behind", deadline_s=deadline_s)]
    rig.put(rig.work("runs", output_tokens=100_000), *[rig.work(i) for i in ids(8, "w")], *behind, partition=0)
    bounds = {"window_requests": 1, "buffer_records": 4, "poll_records": 1}
    consumer = rig.start(engine="simulated", speed=1, **bounds)
    wait_until(lambda: consumer.metric("paused_partitions") == 1, "the buffer is full", consumer)
    wait_until(lambda: time.time() > deadline_s + 1, "its deadline is over", consumer)
    assert rig.by_id() == {}
    rig.cancel("runs")
    late = rig.wait_replies(10)["behind"]
    assert (late.outcome, late.timing.started_s) == (Outcome.EXPIRED, None)
    assert late.timing.finished_s > deadline_s + 1


@pytest.mark.behaviour(20)
def test_an_oversized_reply_fails_with_its_tokens_charged(rig, monkeypatch):
    monkeypatch.setenv("RAMPMETER_TOPICS__MAX_RECORD_BYTES", "3000")
    rig.put(rig.work("big", output_tokens=3000), rig.work("small", output_tokens=5))
    consumer = rig.start(engine="simulated", speed=100)
    replies = rig.wait_replies(2)
    assert (replies["big"].outcome, replies["big"].reason) == (Outcome.FAILED, Reason.REPLY_TOO_LARGE)
    assert replies["big"].tokens.output == 3000
    assert bytes(replies["big"].body) == b"null"
    assert replies["small"].outcome is Outcome.COMPLETED
    wait_until(lambda: len(rig.usages()) == 2, "usage", consumer)
    assert next(usage for usage in rig.usages() if usage.id == "big").tokens.output == 3000
    wait_until(rig.dead_letters, "a dead letter", consumer)
    assert [(letter.id, letter.reason) for letter in rig.dead_letters()] == [("big", Reason.REPLY_TOO_LARGE)]


def test_a_passing_engine_fault_goes_to_the_retries_topics(rig, hosted):
    hosted.server.status = 500
    rig.put(rig.work("r1"), rig.work("r2", attempt=2))
    consumer = rig.start(engine="openai", openai_base_url=hosted.server.url)
    for name, request_id, attempt in (("retries.1s", "r1", 2), ("retries.10s", "r2", 3)):
        wait_until(lambda name=name: len(rig.read(name)) == 1, f"one in {name}", consumer)
        again = codec.decode_work(rig.read(name)[0].value())
        assert (again.request.id, again.attempt) == (request_id, attempt)
    committed = lambda: sum(tp.offset for tp in rig.committed().values())  # noqa: E731
    wait_until(lambda: committed() == 2, "the offsets are committed", consumer)
    assert rig.replies() == []


def test_the_last_attempt_fails_with_a_dead_letter(rig, hosted):
    hosted.server.status = 500
    rig.put(rig.work("r1", attempt=3))
    consumer = rig.start(engine="openai", openai_base_url=hosted.server.url)
    reply = rig.wait_replies(1)["r1"]
    assert (reply.outcome, reply.reason) == (Outcome.FAILED, Reason.ATTEMPTS_EXHAUSTED)
    wait_until(lambda: len(rig.dead_letters()) == 1, "a dead letter", consumer)
    assert rig.dead_letters()[0].id == "r1"


def test_a_fault_that_no_attempt_can_cure_fails_at_once(rig):
    rig.put(rig.work("r1", output_tokens="many"))
    rig.start(engine="simulated")
    reply = rig.wait_replies(1)["r1"]
    assert (reply.outcome, reply.reason) == (Outcome.FAILED, Reason.ENGINE_ERROR)


def claim_of_another(rig, redis, request_id, *, lease_s, state="running"):
    now_ms = int(time.time() * 1000)
    fields = {
        "state": state,
        "owner": "another",
        "attempt": 1,
        "since_ms": now_ms,
        "lease_until_ms": now_ms + int(lease_s * 1000),
    }
    redis.hset(keys.of(rig.settings).claim(request_id), mapping=fields)


def test_what_another_answered_is_finished_in_silence(rig, redis):
    claim_of_another(rig, redis, "r1", lease_s=0, state="done")
    rig.put(rig.work("r1"), rig.work("r2"), partition=0)
    consumer = rig.start()
    wait_until(lambda: rig.committed() and rig.committed()[0].offset == 2, "both are committed", consumer)
    assert sorted(rig.by_id()) == ["r2"]


def test_what_another_runs_is_left_alone_until_its_lease_ends(rig, redis):
    consumer = rig.start().wait_ready()
    claim_of_another(rig, redis, "r1", lease_s=6)
    rig.put(rig.work("r1"), rig.work("r2"), partition=0)
    rig.wait_replies(1)
    wait_until(lambda: consumer.metric("held_requests") == 1, "it is held", consumer)
    assert sorted(rig.by_id()) == ["r2"]
    wait_until(lambda: rig.committed()[0].metadata, "the finished one is in the map", consumer)
    assert rig.committed()[0].offset == 0
    assert sorted(rig.wait_replies(2)) == ["r1", "r2"]
    assert consumer.metric("claims_total", verdict="takeover") == 1


def test_a_taken_over_id_whose_answer_lies_in_the_log_is_settled_without_a_second_one(rig, redis):
    first = rig.start()
    rig.put(rig.work("r1"))
    rig.wait_replies(1)
    assert first.terminate() == 0
    claim_of_another(rig, redis, "r1", lease_s=0.01)
    rig.put(rig.work("r1"))
    second = rig.start()
    wait_until(lambda: second.metric("claims_total", verdict="takeover") == 1, "it is taken over", second)
    wait_until(lambda: len(rig.usages()) == 2, "usage is sent again", second)
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == 2, "both are committed", second)
    assert len(rig.replies()) == 1
    assert rig.usages()[0].tokens == rig.usages()[1].tokens


def test_the_same_id_twice_in_one_consumer_is_run_once(rig):
    rig.put(rig.work("r1", output_tokens=50))
    rig.put(rig.work("r1", output_tokens=50), lane=rig.lane(Tier.AGED, Length.SHORT))
    consumer = rig.start(engine="simulated")
    rig.wait_replies(1)
    wait_until(lambda: rig.committed(rig.lane(Tier.AGED)), "the copy is committed", consumer)
    assert len(rig.by_id()) == 1


def test_the_same_id_in_two_consumers_is_run_once_and_the_copy_waits_while_the_first_runs(rig):
    both = [rig.start(engine="simulated") for _ in range(2)]
    half = 8 * rig.settings.pools["default"].lane_partitions / 2
    wait_until(lambda: [one.metric("owned_partitions") for one in both] == [half, half], "each has its half", both[0])
    work = rig.work("r1", output_tokens=800)
    for partition in (0, 1):
        rig.put(work, partition=partition)
    count = lambda name: sum(one.metric(name) for one in both)  # noqa: E731
    wait_until(lambda: (count("inflight_requests"), count("held_requests")) == (1, 1), "one runs, one waits", both[0])
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == 2, "both are committed", both[0])
    assert len(rig.replies()) == len(rig.usages()) == 1


def commit(rig, offset, metadata):
    member = clients.consumer(rig.settings, catalog.gpu_group(rig.settings, "default"))
    member.commit(offsets=[TopicPartition(rig.lane(), 0, offset, metadata=metadata)], asynchronous=False)
    member.close()


@pytest.mark.behaviour(4)
def test_finished_offsets_in_the_commit_metadata_are_not_run_again(rig):
    from topics import offset_map

    rig.put(*(rig.work(request_id) for request_id in ids(8)), partition=0)
    commit(rig, 1, offset_map.encode(1, [(3, 4), (6, 6)]))
    consumer = rig.start()
    assert sorted(rig.wait_replies(4)) == ["r1", "r2", "r5", "r7"]
    wait_until(lambda: rig.committed()[0].offset == 8, "all is committed", consumer)
    assert len(rig.by_id()) == 4


@pytest.mark.behaviour(5)
@pytest.mark.parametrize("text", ["written by someone else", "rm1b:damaged", "rm1r:c${NoFakpW0%!o3 and more"])
def test_foreign_commit_metadata_is_ignored_with_a_warning(rig, text):
    rig.put(*(rig.work(request_id) for request_id in ids(3)), partition=0)
    commit(rig, 1, text)
    consumer = rig.start()
    assert sorted(rig.wait_replies(2)) == ["r1", "r2"]
    assert "offset_map_ignored" in consumer.log()


def test_a_backlog_larger_than_the_buffers_is_paused_and_resumed_to_its_end(rig):
    for request_id in ids(300):
        rig.put(rig.work(request_id, output_tokens=5), partition=0)
    consumer = rig.start(engine="simulated", speed=20, buffer_records=10, poll_records=5, window_requests=4)
    assert len(rig.wait_replies(300)) == 300
    assert consumer.metric("pauses_total") > 0
    wait_until(lambda: consumer.metric("paused_partitions") == 0, "nothing stays paused", consumer)
