"""What the HTTP engines must do besides what every engine must."""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from gpu_consumers.engine import Finished
from gpu_consumers.engines import factory
from gpu_consumers.engines.llama import LlamaOptions
from gpu_consumers.engines.openai_options import OpenAiOptions
from gpu_consumers.policy.breaker import Rules
from tests.support.clock import FakeClock
from tests.support.engine_conformance import collect, job, until
from tests.support.engines import opened, running
from tests.support.openai_server import serve
from tests.support.streams_worker import wait_until
from topics.clock import SystemClock
from topics.errors import DependencyDown, EngineError
from topics.records import Tokens
from topics.trace_context import TraceContext


@asynccontextmanager
async def openai(**options):
    async with serve() as server, running(OpenAiOptions(server.url, **options)) as engine:
        yield server, engine


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["llama", "openai_to_llama"])
async def test_a_prompt_beyond_the_models_context_fails_for_good_without_being_repeated(kind):
    async with opened(kind) as engine:
        with pytest.raises(EngineError, match=r"400: .*context") as raised:
            await collect(engine, job(text="secret words " * 4000))

    assert not raised.value.retryable
    assert "secret" not in str(raised.value)


@pytest.mark.asyncio
async def test_a_server_gets_the_trace_of_its_request():
    trace = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=1")
    async with openai() as (server, engine):
        await collect(engine, replace(job(), trace=trace))
        await collect(engine, job())
    sent, none = ({name.lower(): value for name, value in headers.items()} for headers in server.headers)
    assert (sent["traceparent"], sent["tracestate"]) == trace
    assert not {"traceparent", "tracestate"} & none.keys()


@pytest.mark.asyncio
async def test_llama_without_its_wheels_says_what_to_install(monkeypatch):
    monkeypatch.setattr("gpu_consumers.engines.llama.MODEL_PACKAGE", "no_such_wheel")
    with pytest.raises(DependencyDown, match=r"requirements-model\.txt"):
        await factory.start(LlamaOptions(), SystemClock())


@pytest.mark.asyncio
async def test_llama_with_a_file_that_is_no_model_says_which(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF nonsense")
    with pytest.raises(DependencyDown, match=r"broken\.gguf"):
        await factory.start(LlamaOptions(model_path=tmp_path / "broken.gguf"), SystemClock())


@pytest.mark.asyncio
async def test_the_servers_chunks_pass_unchanged_and_its_counts_are_taken():
    async with openai() as (_, engine):
        *pieces, finished = await collect(engine, job(stream=True))

    assert [json.loads(p.data)["choices"][0]["delta"] for p in pieces] == [
        {"role": "assistant", "content": ""},
        *({"content": word} for word in ("one", " two", " three", " four")),
        {},
    ]
    assert (finished.tokens.prompt, finished.tokens.output, finished.engine_s) == (7, 4, None)


@pytest.mark.asyncio
async def test_the_first_piece_waits_for_the_first_token():
    async with openai() as (server, engine):
        server.pause_s = 0.3
        first = asyncio.create_task(anext(engine.run(job(stream=True))))
        await asyncio.sleep(0.1)

        assert not first.done()
        first.cancel()


@pytest.mark.asyncio
@pytest.mark.parametrize("cached_tokens", [None, 5])
async def test_the_prefix_cache_is_told_apart_from_what_was_read(cached_tokens):
    async with openai() as (server, engine):
        server.cached_tokens = cached_tokens
        finished = (await collect(engine, job()))[-1]

    assert finished.tokens == Tokens(prompt=7, output=4, cached=cached_tokens or 0)


@pytest.mark.asyncio
async def test_without_usage_the_chunks_are_counted():
    async with openai() as (server, engine):
        server.sends_usage = False
        finished = (await collect(engine, job()))[-1]

    assert finished.tokens.prompt == 20
    assert 4 <= finished.tokens.output <= 5


@pytest.mark.asyncio
async def test_the_key_is_sent_and_never_shown():
    options = OpenAiOptions("http://x/v1", api_key="sesame")
    assert "sesame" not in repr(options)
    async with openai(api_key="sesame") as (server, engine):
        await collect(engine, job())

    assert server.headers[0]["Authorization"] == "Bearer sesame"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "retryable"),
    [(400, False), (401, False), (404, False), (408, True), (422, False), (429, True), (500, True), (503, True)],
)
async def test_a_refusal_is_final_unless_the_server_is_busy_or_broken(status, retryable):
    async with openai() as (server, engine):
        server.status, server.answer = status, b'{"error": {"message": "no, because of reasons", "code": 1}}'
        with pytest.raises(EngineError, match=f"{status}: no, because of reasons") as raised:
            await collect(engine, job())

    assert raised.value.retryable == retryable


@pytest.mark.asyncio
async def test_a_server_that_is_not_there_is_worth_another_try():
    async with running(OpenAiOptions("http://127.0.0.1:9/v1")) as engine:
        with pytest.raises(EngineError) as raised:
            await collect(engine, job())

    assert raised.value.retryable
    assert "127.0.0.1" not in str(raised.value)


async def fails(engine, **fields):
    with pytest.raises(EngineError) as raised:
        await collect(engine, job(**fields))
    return raised.value


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("says", ["30", "a date"])
async def test_a_server_that_says_when_to_come_back_gets_nothing_until_then(status, says):
    clock = FakeClock()
    async with serve() as server, running(OpenAiOptions(server.url), clock) as engine:
        retry_after = says if says == "30" else formatdate(clock.wall_s() + 30, usegmt=True)
        server.status, server.retry_after = status, retry_after
        assert (await fails(engine)).untried
        server.status = 200
        assert engine.load().closed == "the server asked for a pause"
        assert (await fails(engine)).untried
        clock.advance(29)
        assert (await fails(engine)).untried
        assert len(server.bodies) == 1
        clock.advance(1.1)
        assert engine.load().closed is None
        assert isinstance((await collect(engine, job()))[-1], Finished)


@pytest.mark.asyncio
@pytest.mark.parametrize(("said", "wait_s"), [("3600", 20), ("-5", 1), ("soon", 1), (None, 1), ("0", 0.1)])
async def test_a_pause_is_bounded_and_what_makes_no_sense_is_a_short_one(said, wait_s):
    clock = FakeClock()
    options = {"breaker": Rules(longest_wait_s=20)}
    async with serve() as server, running(OpenAiOptions(server.url, **options), clock) as engine:
        server.status, server.retry_after = 429, said
        await fails(engine)
        clock.advance(wait_s - 0.05)
        assert engine.load().closed is not None
        clock.advance(0.1)
        assert engine.load().closed is None


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["status", "break_after", "error_after", "gone"])
async def test_after_failures_in_a_row_only_probes_go_to_the_server_until_one_succeeds(fault):
    async with serve() as server:
        options = OpenAiOptions(server.url, breaker=Rules(failures=3), probe_s=0.05)
        async with running(options) as engine:
            if fault == "gone":
                await server.go_away()
            elif fault == "status":
                server.status = 500
            else:
                setattr(server, fault, 0)
            assert [(await fails(engine)).untried for _ in range(3)] == [fault == "gone"] * 3
            assert engine.load().closed == "the server failed 3 times in a row"
            seen = len(server.bodies)
            assert (await fails(engine)).untried
            await asyncio.sleep(0.3)
            assert engine.load().closed is not None
            assert all(b"Count" not in probe for probe in server.bodies[seen:])
            assert len(server.bodies) > seen or fault == "gone"
            server.status, server.break_after, server.error_after = 200, None, None
            if fault == "gone":
                await server.come_back()
            await until(lambda: engine.load().closed is None)
            assert isinstance((await collect(engine, job()))[-1], Finished)


@pytest.mark.asyncio
async def test_failures_between_answers_and_refusals_of_a_request_leave_it_in_use():
    async with openai(breaker=Rules(failures=2)) as (server, engine):
        for status in (500, 200, 500, 400, 500):
            server.status = status
            if status == 200:
                await collect(engine, job())
            else:
                assert not (await fails(engine)).untried
            assert engine.load().closed is None


@pytest.mark.asyncio
async def test_llama_starts_its_server_anew_when_it_ends():
    async with opened("llama") as engine:
        caught = asyncio.create_task(fails(engine, max_tokens=900, ignore_eos=True))
        await asyncio.sleep(0.3)
        before = engine.server_pid
        os.kill(before, signal.SIGKILL)
        error = await caught
        assert (error.retryable, error.fatal, error.untried) == (True, False, False)
        await until(lambda: engine.server_pid != before)
        await until(lambda: engine.load().closed is None)
        assert isinstance((await collect(engine, job()))[-1], Finished)


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["break_after", "error_after"])
async def test_an_answer_broken_off_is_not_taken_for_whole(fault):
    async with openai() as (server, engine):
        setattr(server, fault, 2)
        with pytest.raises(EngineError) as raised:
            await collect(engine, job())

    assert raised.value.retryable


@pytest.mark.asyncio
async def test_a_silent_server_is_given_up():
    async with openai(silence_timeout_s=0.1) as (server, engine):
        server.pause_s = 5.0
        with pytest.raises(EngineError) as raised:
            await collect(engine, job())

    assert raised.value.retryable


@pytest.mark.asyncio
async def test_leaving_a_job_disconnects_from_the_server():
    async with openai() as (server, engine):
        server.pause_s = 0.05
        items = engine.run(job())
        await anext(items)
        await items.aclose()
        async with asyncio.timeout(2):
            while not server.left:  # noqa: ASYNC110 - the server is no part of ours
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("when", ["while vLLM starts", "later"])
@pytest.mark.parametrize("how", ["killed", "closed"])
def test_what_a_consumer_leaves_behind_of_vllm_is_ended_by_the_guard(how, when):
    """Its child, and that one's; not what was there before."""
    script = (
        "import os, subprocess, sys;"
        "other = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL);"
        "command = [sys.executable, '-m', 'gpu_consumers.engines.vllm_guard', str(os.getpid())];"
        "guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE);"
        "guard.stdout.readline();"
        "core = subprocess.Popen(['sh', '-c', f'sleep 60 & echo {other.pid} {guard.pid} $$ $!; wait']);"
        "sys.argv[1] == 'later' and (guard.stdin.write(b'%d\\n' % core.pid), guard.stdin.flush());"
        "sys.stdin.read()"
    )
    consumer = subprocess.Popen([sys.executable, "-c", script, when], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    first, guard, *started = map(int, consumer.stdout.readline().split())
    other, *left = map(os.pidfd_open, (first, *started))
    try:
        told = 1 if when == "later" else len(left)  # of the one that it is told, it finds the child in the end
        wait_until(lambda: held_by(guard) >= told, 20)
        assert not any(map(has_ended, (other, *left)))
        if how == "killed":
            consumer.kill()
        consumer.communicate(timeout=10)
        wait_until(lambda: all(map(has_ended, left)), 30)  # a process lets go of its files before it has ended
        assert not has_ended(other)
    finally:
        for handle in (other, *left):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


def held_by(pid):
    """How many handles of processes a process has."""
    files = Path(f"/proc/{pid}/fd").iterdir()
    return sum("pidfd" in os.readlink(file) for file in files)  # noqa: PTH115 - it leads to no path


def has_ended(handle):
    return bool(select.select([handle], [], [], 0)[0])
