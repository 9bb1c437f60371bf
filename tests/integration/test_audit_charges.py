"""The audit of charges on real topics: what a run leaves behind is clean, what is put into its log is found."""

import asyncio
import time

import msgspec
import pytest

from rampmeter.charges import Fault
from tests.support.builders import usage
from tests.support.command import one_line_of_json, run
from tests.support.gpu import Consumer
from tests.support.openai_server import serve
from tests.support.streams_worker import Site, StreamsWorker, chat, wait_until
from topics import codec
from topics.outcomes import Outcome
from topics.records import Control, ControlAction, ControlKind, Reply

PROMPT = "sentinel-prompt-text"


@pytest.fixture
def site(broker, redis_server, tmp_path):
    made = Site(broker, redis_server.url, 9)
    worker = StreamsWorker(made.env, tmp_path / "worker.log").start()
    yield made
    assert worker.stop() == 0
    made.close()


@pytest.fixture
def start(site, monkeypatch, tmp_path):
    """Start a consumer on the site."""
    for name, value in site.env.items():
        if name != "RAMPMETER_STREAMS":
            monkeypatch.setenv(name, value)
    started = []

    def start_one(**gpu):
        consumer = Consumer(tmp_path / f"gpu{len(started)}.log", **gpu)
        started.append(consumer)
        return consumer.wait_ready()

    yield start_one
    for consumer in started:
        consumer.kill()


def ask(site, request_id, **fields):
    headers = [("rampmeter_id", request_id.encode()), ("rampmeter_tenant", b"acme")]
    return site.send(chat(text=PROMPT, **{"max_tokens": 8, **fields}), headers=headers)


def answers(log, count):
    def found(messages):
        decoded = [codec.decode_answer(message.value()) for message in messages]
        replies = {answer.id: answer for answer in decoded if isinstance(answer, Reply)}
        return replies if len(replies) >= count else None

    return log.until(found, 60)


def settlements(log, count):
    def found(messages):
        decisions = [codec.decode_decision(message.value()) for message in messages]
        return sum(decision.stage == "settlement" for decision in decisions) >= count

    log.until(found, 60)


def audited(site, tmp_path, *, status, pending="0"):
    done = run("audit", "--json", "--pending", pending, cwd=tmp_path, env=site.env)
    assert done.returncode == status, done.stdout + done.stderr
    assert PROMPT not in done.stdout + done.stderr
    return one_line_of_json(done)


def cancel(site, request_id):
    order = Control(
        id="o1", action=ControlAction.CANCEL, kind=ControlKind.REQUEST, name=request_id, at_s=time.time(), by="test"
    )
    site.send(codec.encode(order), "control", f"request:{request_id}".encode())


def test_what_a_normal_run_leaves_behind_is_clean_and_a_second_usage_in_it_is_found(site, start, tmp_path):
    log = {name: site.log(name) for name in ("replies", "usage", "decisions")}
    first = start(engine="simulated", speed=1, grace_s=0.1, lease_s=2, renew_s=0.5)
    for number in range(5):
        ask(site, f"done-{number}")
    ask(site, "refused", model="gpt-9")
    answers(log["replies"], 6)
    ask(site, "moved", max_tokens=3000, simulated_output_tokens=3000)
    settlements(log["decisions"], 5)
    wait_until(lambda: first.metric("inflight_requests"), 30)
    time.sleep(1)
    assert first.terminate() == 0  # tells a part under the number of the attempt that the next one ends
    second = start(engine="simulated", speed=50, lease_s=2, renew_s=0.5, held_retry_s=0.2)
    answers(log["replies"], 7)
    ask(site, "stopped", max_tokens=16_000, simulated_output_tokens=100_000)
    wait_until(lambda: second.metric("inflight_requests"), 30)
    cancel(site, "stopped")
    replies = answers(log["replies"], 8)
    assert (replies["refused"].outcome, replies["stopped"].outcome) == (Outcome.REJECTED_INVALID, Outcome.CANCELLED)
    settlements(log["decisions"], 8)
    told = [codec.decode_usage(message.value()) for message in log["usage"].poll()]
    assert [(one.partial, one.attempt) for one in told if one.id == "moved"] == [(True, 1), (False, 1)]
    found = audited(site, tmp_path, status=0)
    assert (found["lost"], found["duplicates"], found["pending"]) == (0, 0, 0)
    assert found["charges"]["findings"] == []
    assert [found["charges"][name] for name in ("answers", "usages", "settlements", "pending")] == [7, 8, 8, 0]

    first_told, partition = told[0], log["usage"].messages[0].partition()
    twice = msgspec.structs.replace(
        first_told, tokens=msgspec.structs.replace(first_told.tokens, output=99), consumer="other"
    )
    at = site.send(codec.encode(twice), "usage", first_told.tenant.encode(), partition=partition)
    settlements(log["decisions"], 9)
    (finding,) = audited(site, tmp_path, status=1)["charges"]["findings"]
    assert (finding["kind"], finding["id"]) == (Fault.DOUBLE_USAGE, first_told.id)
    assert (finding["topic"], finding["partition"], finding["offset"]) == (at.topic, at.partition, at.offset)


@pytest.mark.asyncio
async def test_a_request_that_was_tried_again_is_clean_and_another_cost_in_its_reply_is_found(site, start, tmp_path):
    log = {name: site.log(name) for name in ("replies", "usage", "decisions")}

    async with serve() as server:
        await asyncio.to_thread(start, engine="openai", openai_base_url=server.url)
        server.status = 500
        await asyncio.to_thread(ask, site, "again")
        await asyncio.to_thread(settlements, log["decisions"], 1)
        server.status = 200
        reply = (await asyncio.to_thread(answers, log["replies"], 1))["again"]
        await asyncio.to_thread(settlements, log["decisions"], 2)
        assert (reply.outcome, reply.attempt) == (Outcome.COMPLETED, 2)
        found = await asyncio.to_thread(audited, site, tmp_path, status=0)
        assert (found["charges"]["usages"], found["charges"]["findings"]) == (2, [])
        origin = await asyncio.to_thread(ask, site, "forged")
        genuine = await asyncio.to_thread(answers, log["replies"], 2)
        await asyncio.to_thread(settlements, log["decisions"], 3)
    forged = msgspec.structs.replace(genuine["forged"], cost_units=genuine["forged"].cost_units + 5, origin=origin)
    at = await asyncio.to_thread(site.send, codec.encode(forged), "replies", b"forged")
    found = await asyncio.to_thread(audited, site, tmp_path, status=1)
    assert found["duplicates"] == 1
    (finding,) = found["charges"]["findings"]
    assert (finding["kind"], finding["id"]) == (Fault.COST_MISMATCH, "forged")
    assert (finding["topic"], finding["partition"], finding["offset"]) == (at.topic, at.partition, at.offset)


def test_findings_are_shown_to_people_with_their_place_and_what_to_do(site, tmp_path):
    work = usage(id="alone", finished_s=time.time())
    at = site.send(codec.encode(work), "usage", b"acme")
    settlements(site.log("decisions"), 1)
    done = run("audit", "--pending", "0", cwd=tmp_path, env={**site.env, "NO_COLOR": "1"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"alone at {at.topic}[0]@0: attempt 1" in done.stdout
    assert "usage without reply (1): used an engine and got no answer" in done.stdout
