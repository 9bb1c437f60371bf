"""What every engine must do, and what the HTTP engines must do besides."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress

import pytest

from gpu_consumers.engine import Finished, Job, Piece
from gpu_consumers.engines import factory
from gpu_consumers.engines.llama import LlamaOptions
from gpu_consumers.engines.null import NullOptions
from gpu_consumers.engines.openai import OpenAiOptions
from gpu_consumers.engines.simulated import SimulatedOptions
from tests.support.openai_server import serve
from topics.clock import SystemClock
from topics.errors import DependencyDown, EngineError
from topics.records import Tokens

KINDS = ("simulated", "openai", "llama", "openai_to_llama")
PROMPT = "Count from one to five, please."


@asynccontextmanager
async def running(options):
    engine = await factory.start(options, SystemClock())
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def engine_of(kind):
    if kind == "openai":
        async with serve() as server, running(OpenAiOptions(server.url)) as engine:
            server.words = server.words * 250
            server.pause_s = 0.01
            yield engine
    elif kind == "openai_to_llama":
        async with running(LlamaOptions()) as llama, running(OpenAiOptions(llama.base_url)) as engine:
            yield engine
    else:
        options = {"simulated": SimulatedOptions(speed=50.0), "llama": LlamaOptions(), "null": NullOptions()}[kind]
        async with running(options) as engine:
            yield engine


@asynccontextmanager
async def openai(**options):
    async with serve() as server, running(OpenAiOptions(server.url, **options)) as engine:
        yield server, engine


def job(id_="r1", *, stream=False, max_tokens=4, text=PROMPT, **fields):
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **fields}
    return Job(id_, "m", json.dumps(body).encode(), 20, max_tokens, rank=0, stream=stream)


async def collect(engine, a_job):
    return [item async for item in engine.run(a_job)]


async def settle(engine):
    async with asyncio.timeout(5):
        while engine.load().running:  # noqa: ASYNC110 - an engine has no event for this
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [*KINDS, "null"])
async def test_a_job_yields_its_first_token_and_then_the_whole_answer(kind):
    async with engine_of(kind) as engine:
        *pieces, finished = await collect(engine, job())

    assert pieces == [Piece(b"")]
    body = json.loads(finished.body)
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["choices"][0]["message"]["content"].strip()
    assert body["choices"][0]["finish_reason"] in ("stop", "length")
    assert body["usage"]["completion_tokens"] == finished.tokens.output
    assert 1 <= finished.tokens.output <= 4
    assert finished.tokens.prompt > 0


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [*KINDS, "null"])
async def test_a_streamed_job_yields_chunks_that_join_to_the_whole_answer(kind):
    async with engine_of(kind) as engine:
        *pieces, finished = await collect(engine, job(stream=True))

    chunks = [json.loads(piece.data) for piece in pieces]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all(chunk["choices"] for chunk in chunks)
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert isinstance(finished, Finished)
    whole = json.loads(finished.body)["choices"][0]
    assert (text, chunks[-1]["choices"][0]["finish_reason"]) == (whole["message"]["content"], whole["finish_reason"])


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_many_jobs_run_at_once_and_each_ends(kind):
    async with engine_of(kind) as engine:
        answers = await asyncio.gather(*(collect(engine, job(str(n), stream=n % 2 == 0)) for n in range(6)))

        assert all(isinstance(items[-1], Finished) for items in answers)
        assert (engine.load().running, engine.load().waiting) == (0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_job_leaves_the_engine_which_goes_on(kind, stream):
    async with engine_of(kind) as engine:
        long = job("long", stream=stream, max_tokens=900, simulated_output_tokens=5000)
        task = asyncio.create_task(collect(engine, long))
        await asyncio.sleep(0.02)
        assert engine.load().running == 1
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

        await settle(engine)
        assert isinstance((await collect(engine, job()))[-1], Finished)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_iterator_leaves_the_engine_too(kind):
    async with engine_of(kind) as engine:
        items = engine.run(job(max_tokens=900, simulated_output_tokens=5000, stream=True))
        assert isinstance(await anext(items), Piece)
        await items.aclose()

        await settle(engine)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_an_aborted_job_says_how_much_it_had_made(kind):
    async with engine_of(kind) as engine:
        aborted = job(max_tokens=900, simulated_output_tokens=5000, stream=True)
        items = engine.run(aborted)
        for _ in range(5):
            await anext(items)
        await items.aclose()

        assert 3 <= aborted.progress.output_tokens < 900


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [b"[]", b"nonsense", b""])
async def test_a_body_that_is_no_request_fails_for_good(kind, body):
    async with engine_of(kind) as engine:
        with pytest.raises(EngineError) as raised:
            await collect(engine, Job("r1", "m", body, 1, None, 0, stream=False))

    assert not raised.value.retryable


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_engine_asks_to_try_elsewhere(kind):
    async with engine_of(kind) as engine:
        caught = asyncio.create_task(collect(engine, job(max_tokens=900, simulated_output_tokens=5000)))
        await asyncio.sleep(0.02)
        await engine.close()
        for task in (caught, asyncio.create_task(collect(engine, job()))):
            with pytest.raises(EngineError) as raised:
                await task
            assert raised.value.retryable


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["llama", "openai_to_llama"])
async def test_a_prompt_beyond_the_models_context_fails_for_good_without_being_repeated(kind):
    async with engine_of(kind) as engine:
        with pytest.raises(EngineError, match=r"400: .*context") as raised:
            await collect(engine, job(text="secret words " * 4000))

    assert not raised.value.retryable
    assert "secret" not in str(raised.value)


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
async def test_the_usage_chunk_reaches_those_who_asked_for_it():
    async with openai() as (_, engine):
        *pieces, _ = await collect(engine, job(stream=True, stream_options={"include_usage": True}))

    assert json.loads(pieces[-1].data)["usage"]["completion_tokens"] == 4


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
