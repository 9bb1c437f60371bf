"""What services use to ask, on a whole pipeline: the Python clients, the HTTP door, and what the docs show."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
import uuid
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

import rampmeter
from rampmeter.settings import StackSettings
from tests.support import command, whole
from tests.support.door import SECRETS
from tests.support.streams_worker import wait_until
from topics import codec
from topics.outcomes import Outcome
from topics.records import Chunk, Reply
from topics.settings import load

SENTINEL = "SENTINEL-a-prompt-nobody-may-log"
MESSAGES = [{"role": "user", "content": SENTINEL}]
UPSTREAM = Path(__file__).parents[2] / "docs" / "upstream.md"
WAIT_S = 30.0


@pytest.fixture(scope="module")
def site(broker, redis_server, tmp_path_factory):
    folder, door = tmp_path_factory.mktemp("upstream"), {"drain_s": 3, "tenant_open_requests": 4}
    with whole.running(broker, redis_server.url, folder, door=door, poor_units_per_s=1.0, max_deferral_s=6) as made:
        yield made


@pytest.fixture
def settings(site, monkeypatch):
    """As a service has them: from the environment."""
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    return load(StackSettings)


@pytest.fixture
def door(site):
    return site.door


@pytest.fixture
def client(door):
    with openai.OpenAI(base_url=door.url, api_key=SECRETS["acme"], max_retries=0, timeout=WAIT_S) as made:
        yield made


def ask(**fields):
    return rampmeter.Ask(MESSAGES, tenant="acme", **{"max_tokens": 20, **fields})


def outcomes(replies):
    return [reply.outcome for reply in replies]


def test_a_client_reads_many_answers_in_any_order(settings):
    with rampmeter.Client() as client:
        pending = [client.submit(ask()) for _ in range(5)]
        replies = [one.result(WAIT_S) for one in reversed(pending)]
        assert [reply.id for reply in replies] == [one.id for one in reversed(pending)]
        assert outcomes(replies) == [Outcome.COMPLETED] * 5
        assert rampmeter.text_of(replies[0])


def test_a_client_streams_one_answer_while_others_arrive(settings):
    with rampmeter.Client() as client:
        streamed, other = client.submit(ask(stream=True)), client.submit(ask())
        other.result(WAIT_S)
        *chunks, reply = streamed.stream(WAIT_S)
        assert [chunk.seq for chunk in chunks] == list(range(reply.chunks))
        assert "".join(map(rampmeter.text_of, chunks)) == rampmeter.text_of(reply)


def test_a_cursor_kept_while_answers_lie_unread_loses_none_of_them(settings):
    with rampmeter.Client() as client:
        other, streamed = client.submit(ask(max_tokens=100)), client.submit(ask(stream=True))
        answers = streamed.stream(WAIT_S)
        seen = [next(answers)]
        other.result(WAIT_S)
        kept = client.cursor
    with rampmeter.Client() as client:
        seen += client.resume(kept, WAIT_S)
    assert [answer.seq for answer in seen[:-1]] == list(range(seen[-1].chunks))


def test_a_client_cancels(settings):
    with rampmeter.Client() as client:
        pending = client.submit(ask(max_tokens=9000, extra={"simulated_output_tokens": 9000}, stream=True))
        next(pending.stream(WAIT_S))
        pending.cancel()
        assert pending.result(WAIT_S).outcome is Outcome.CANCELLED


@pytest.mark.asyncio
async def test_one_reader_serves_all_that_await(settings):
    async with rampmeter.AsyncClient() as client:
        pending = await asyncio.gather(*(client.submit(ask()) for _ in range(20)))
        replies = await asyncio.gather(*(one.result(WAIT_S) for one in pending))
    assert [reply.id for reply in replies] == [one.id for one in pending]
    assert outcomes(replies) == [Outcome.COMPLETED] * 20


@pytest.mark.asyncio
async def test_an_async_client_streams_waits_again_and_cancels(settings):
    async with rampmeter.AsyncClient() as client:
        answers = [answer async for answer in client.stream(ask(stream=True), WAIT_S)]
        assert [type(answer) for answer in answers] == [Chunk] * answers[-1].chunks + [Reply]
        long = await client.submit(ask(max_tokens=9000, extra={"simulated_output_tokens": 9000}))
        with pytest.raises(rampmeter.NoAnswer, match=long.id):
            await long.result(0.2)
        await long.cancel()
        assert (await long.result(WAIT_S)).outcome is Outcome.CANCELLED
    with pytest.raises(rampmeter.ClientClosed):
        await client.submit(ask())


@pytest.mark.asyncio
async def test_whoever_still_waits_for_a_client_that_closes_learns_it(settings):
    async with rampmeter.AsyncClient() as client:
        long = await client.submit(ask(max_tokens=9000, extra={"simulated_output_tokens": 9000}))
        waiting = asyncio.create_task(long.result(WAIT_S))
        await asyncio.sleep(0)
    with pytest.raises(rampmeter.ClientClosed):
        await waiting
    async with rampmeter.AsyncClient() as again:
        await again.cancel(long.id)


def open_requests(door):
    return door.metric("rampmeter_door_open_requests")


def state_of(door, request_id):
    _, _, told = door.call("GET", f"/requests/{request_id}")
    return told.get("status")


def test_the_stock_openai_client_gets_an_answer(client):
    done = client.chat.completions.create(model="llama-3-8b", messages=MESSAGES, max_tokens=20)
    assert done.choices[0].message.content
    assert done.usage.completion_tokens > 0
    assert done._request_id.startswith("acme:")


def test_the_stock_openai_client_gets_a_stream_with_its_usage(client):
    with client.chat.completions.create(
        model="llama-3-8b", messages=MESSAGES, max_tokens=20, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]
    assert chunks[-1].usage.completion_tokens > 0


def test_the_stock_openai_client_lists_the_models(client):
    assert "llama-3-8b" in [model.id for model in client.models.list()]
    assert client.models.retrieve("llama-3-8b").id == "llama-3-8b"


def test_a_stream_is_server_sent_events_up_to_done(door):
    body = json.dumps({"messages": MESSAGES, "simulated_output_tokens": 5, "stream": True}).encode()
    with connected(door, body) as line:
        text = b"".join(iter(lambda: line.recv(65536), b"")).decode()
    assert "text/event-stream" in text
    assert text.count("data: {") >= 2
    assert "data: [DONE]" in text


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "gpt-17"}, openai.NotFoundError, "model_not_found"),
        ({"max_tokens": 999_999_999}, openai.BadRequestError, "max_tokens"),
        ({"messages": "hello"}, openai.BadRequestError, "wrong_shape"),
    ],
)
def test_wrong_input_is_an_error_that_the_stock_client_knows(client, fields, error, code):
    with pytest.raises(error) as raised:
        client.chat.completions.create(**{"model": "llama-3-8b", "messages": MESSAGES, **fields})
    assert raised.value.body["code"] == code
    assert SENTINEL not in str(raised.value)


def test_without_a_valid_key_nobody_enters(door):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=door.url, api_key="sk-nobody", max_retries=0).models.list()
    assert door.call("GET", "/models", key=None)[0] == 401


def test_a_spent_budget_is_429_and_says_when_to_come_back(door):
    body = {"messages": MESSAGES, "max_tokens": 350, "simulated_output_tokens": 350}
    assert door.call("POST", "/requests", body, "poor")[0] == 202
    status, headers, told = door.call("POST", "/chat/completions", body, "poor")
    assert (status, told["error"]["type"]) == (429, "rate_limit_error"), told
    assert int(headers["Retry-After"]) > 0


def test_what_cannot_be_answered_in_time_is_504_with_its_id(door):
    body = {"messages": MESSAGES, "max_tokens": 9000, "simulated_output_tokens": 9000}
    status, headers, told = door.call("POST", "/chat/completions", body, rampmeter_timeout_s="0.001")
    assert status == 504, told
    assert told["id"] == headers["x-request-id"]


def test_tenant_and_class_are_stamped_from_the_key(site, door):
    log = site.log("decisions")
    body = {"messages": MESSAGES, "max_tokens": 5, "tenant": "mallory", "priority": "high"}
    _, headers, _ = door.call("POST", "/chat/completions", body, "humble", rampmeter_priority="high")
    decided = log.until(lambda found: [m for m in found if m.key() == headers["x-request-id"].encode()])
    inputs = codec.decode_decision(decided[0].value()).inputs
    assert (inputs["tenant"], inputs["priority"]) == ("acme", "low")


def test_a_request_is_queued_fetched_and_answered_once_for_its_key(door):
    body = {"messages": MESSAGES, "max_tokens": 20}
    key = uuid.uuid4().hex
    status, headers, told = door.call("POST", "/requests", body, idempotency_key=key)
    assert (status, headers["Location"], told["status"]) == (202, f"/v1/requests/acme:{key}", "queued")
    wait_until(lambda: state_of(door, told["id"]) == "completed", WAIT_S, door.log)
    _, _, fetched = door.call("GET", f"/requests/{told['id']}")
    assert fetched["response"]["body"]["object"] == "chat.completion"
    _, _, again = door.call("POST", "/chat/completions", body, idempotency_key=key)
    assert again == fetched["response"]["body"]
    assert door.call("GET", f"/requests/{told['id']}", key="other")[0] == 404


def test_prefer_respond_async_queues_and_delete_cancels(door):
    body = {"messages": MESSAGES, "max_tokens": 9000, "simulated_output_tokens": 9000}
    status, headers, told = door.call("POST", "/chat/completions", body, Prefer="respond-async")
    assert (status, headers["Preference-Applied"]) == (202, "respond-async")
    assert door.call("DELETE", f"/requests/{told['id']}")[0] == 202
    wait_until(lambda: state_of(door, told["id"]) == "cancelled", WAIT_S, door.log)


@contextmanager
def connected(door, body, path="/v1/chat/completions"):
    """A socket over which a request was sent and nothing read yet."""
    where = urllib.parse.urlsplit(door.url)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {SECRETS['acme']}\r\n"
    with socket.create_connection((where.hostname, where.port), timeout=WAIT_S) as line:
        line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        yield line


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_request(door, stream):
    fields = {"max_tokens": 9000, "simulated_output_tokens": 9000, "stream": stream}
    before = door.metric("rampmeter_door_disconnects_total")
    with connected(door, json.dumps({"messages": MESSAGES, **fields}).encode()) as line:
        wait_until(lambda: open_requests(door) == 1, WAIT_S, door.log)
        assert not stream or line.recv(1)
    wait_until(lambda: door.metric("rampmeter_door_disconnects_total") == before + 1, WAIT_S, door.log)
    (left,) = re.findall(r"client_left.*?id=(\S+)", plain(door.log()))[-1:]
    wait_until(lambda: state_of(door, left) == "cancelled", WAIT_S, door.log)


def plain(log):
    return re.sub(r"\x1b\[[0-9;]*m", "", log)


def test_a_body_beyond_the_limit_is_413(door):
    status, _, told = door.call("POST", "/chat/completions", b"x" * 900_001)
    assert (status, told["error"]["code"]) == (413, "body_too_large")


HEAD = f"Host: x\r\nAuthorization: Bearer {SECRETS['acme']}\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (f"{SENTINEL}\r\n\r\n", 400, "bad_request"),
        (f"GET /v1/models HTTP/1.1\r\nAuthorization: {SENTINEL * 300}\r\n\r\n", 400, "bad_request"),
        (f"POST /v1/chat/completions HTTP/1.1\r\n{HEAD}\r\n{SENTINEL}\r\n", 400, "bad_request"),
        (f"POST /v1/requests HTTP/1.1\r\n{HEAD}Content-Encoding: gzip\r\n\r\n2\r\n{{}}\r\n", 400, "bad_request"),
        (f"POST /v1/{SENTINEL} HTTP/1.1\r\n{HEAD}\r\n0\r\n\r\n", 404, "not_found"),
        (f"PUT /v1/chat/completions HTTP/1.1\r\n{HEAD}\r\n0\r\n\r\n", 405, "method_not_allowed"),
        (f"POST /v1/requests HTTP/1.1\r\n{HEAD}Expect: {SENTINEL}\r\n\r\n0\r\n\r\n", 417, "expectation_failed"),
    ],
    ids=["no request line", "long header", "bad chunk", "no gzip", "unknown path", "wrong method", "bad expectation"],
)
def test_what_is_refused_unread_has_openais_form_and_repeats_nothing(door, sent, status, code):
    answered, headers, body = door.answer_to(sent.encode())
    error = json.loads(body)["error"]
    assert (answered, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert error["message"]
    assert headers.get("Allow") == ("POST" if status == 405 else None)
    assert SENTINEL not in f"{headers}{body}{door.log()}"


def test_what_came_by_http_is_counted_apart(site, client):
    def counted():
        name = "rampmeter_streams_interface_requests_total"
        return [site.worker.metric(f'{name}{{interface="{way}"}}') for way in ("http", "topic")]

    http, topic = counted()
    client.chat.completions.create(model="llama-3-8b", messages=MESSAGES, max_tokens=3)
    site.send(b'{"messages": []}')
    wait_until(lambda: counted() == [http + 1, topic + 1], WAIT_S, lambda: f"{counted()} after {[http, topic]}")


def test_health_and_metrics_are_served_and_no_prompt_key_or_id_is_in_them(door):
    for path in ("livez", "readyz"):
        assert door.status(path)[0] == 200
    shown = door.status("metrics")[1]
    assert 'rampmeter_door_requests_total{route="chat",status="200"}' in shown
    for text in (shown, door.log()):
        assert SENTINEL not in text
        assert not any(secret in text for secret in SECRETS.values())
    assert "acme:" not in shown


def test_nobody_with_a_key_missing_starts(site, tmp_path):
    done = command.run("serve", cwd=tmp_path, env={**site.env, "RAMPMETER_DOOR__PORT": "0"})
    assert done.returncode == 78
    assert "nobody may enter" in done.stderr


BLOCKS = {
    name: (language, text)
    for name, language, text in re.findall(
        r"<!-- run: (\S+) -->\n```(python|sh)\n(.*?)```", UPSTREAM.read_text(), flags=re.DOTALL
    )
}
RUNNERS = {"python": sys.executable, "sh": "sh"}
NO_KCAT = pytest.mark.skipif(shutil.which("kcat") is None, reason="needs kcat: apt-get install kcat")


@pytest.mark.parametrize("name", [pytest.param(name, marks=NO_KCAT) if name == "kcat" else name for name in BLOCKS])
def test_what_the_docs_show_runs_as_it_stands(site, door, tmp_path, name):
    language, text = BLOCKS[name]
    (tmp_path / "example").write_text(text)
    env = {**site.env, "BROKER": site.env["RAMPMETER_KAFKA__BOOTSTRAP_SERVERS"], "PREFIX": site.settings.topics.prefix}
    env |= {"OPENAI_BASE_URL": door.url, "OPENAI_API_KEY": SECRETS["acme"]}
    done = subprocess.run(
        [RUNNERS[language], "example"], cwd=tmp_path, env=command.environment(env), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stdout
