"""What every engine must do.  A test module imports all of it and says by its fixtures which engines are meant:

`any_engine`, also one that answers at once; `engine`, one on which a job can be caught running; `serial_engine`, one
that runs a single job at a time; `ranking_engine`, such a one that knows priorities; `engine_to_close`.
"""

import asyncio
import json
import time
from contextlib import suppress

import pytest

from gpu_consumers.engine import Finished, Job, Piece
from topics.errors import EngineError

PROMPT = "Count from one to five, please."


def job(id_="r1", *, stream=False, max_tokens=4, text=PROMPT, rank=0, trace=None, **fields):
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **fields}
    said = json.dumps({"temperature": 0, **body}).encode()
    return Job(id_, "m", said, 20, max_tokens, rank=rank, stream=stream, trace=trace)


def long_job(id_="long", *, max_tokens=900, **fields):
    """One that runs until it is stopped, by each engine's own word for it."""
    return job(id_, max_tokens=max_tokens, simulated_output_tokens=5000, ignore_eos=True, **fields)


async def collect(engine, a_job):
    return [item async for item in engine.run(a_job)]


async def settle(engine):
    async with asyncio.timeout(5):
        while engine.load().running:  # noqa: ASYNC110 - an engine has no event for this
            await asyncio.sleep(0.01)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - an engine has no event for this
            await asyncio.sleep(0.01)


async def stop(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_job_yields_its_first_token_and_then_the_whole_answer(any_engine):
    *pieces, finished = await collect(any_engine, job())

    assert pieces == [Piece(b"")]
    body = json.loads(finished.body)
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["choices"][0]["message"]["content"].strip()
    assert body["choices"][0]["finish_reason"] in ("stop", "length")
    assert body["usage"]["completion_tokens"] == finished.tokens.output
    assert 1 <= finished.tokens.output <= 4
    assert finished.tokens.prompt > 0


async def test_a_streamed_job_yields_chunks_that_join_to_the_whole_answer(any_engine):
    *pieces, finished = await collect(any_engine, job(stream=True))

    chunks = [json.loads(piece.data) for piece in pieces]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all(chunk["choices"] for chunk in chunks)
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert isinstance(finished, Finished)
    whole = json.loads(finished.body)["choices"][0]
    assert (text, chunks[-1]["choices"][0]["finish_reason"]) == (whole["message"]["content"], whole["finish_reason"])


async def test_a_stream_ends_with_its_usage_when_that_was_asked_for(any_engine):
    *pieces, finished = await collect(any_engine, job(stream=True, stream_options={"include_usage": True}))

    last = json.loads(pieces[-1].data)
    assert last["choices"] == []
    for usage in (last["usage"], json.loads(finished.body)["usage"]):
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (finished.tokens.prompt, finished.tokens.output)


async def test_its_load_counts_its_jobs_and_their_memory(engine):
    before = engine.load()
    assert (before.running, before.waiting, before.closed) == (0, 0, None)
    tasks = [asyncio.create_task(collect(engine, long_job(str(n), stream=True))) for n in range(3)]
    await until(lambda: engine.load().running + engine.load().waiting == 3)
    if before.total_kv_tokens is None:
        assert engine.load().free_kv_tokens is None
    else:
        await until(lambda: 0 <= engine.load().free_kv_tokens < before.total_kv_tokens)
    await stop(*tasks)
    await settle(engine)
    assert engine.load() == before


async def test_an_abort_frees_its_slot_at_once(serial_engine):
    long = long_job(stream=True)
    since_s = time.monotonic()
    running = asyncio.create_task(collect(serial_engine, long))
    await until(lambda: serial_engine.load() and long.progress.output_tokens >= 10)
    waiting = asyncio.create_task(collect(serial_engine, job("next")))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    per_token_s = (time.monotonic() - since_s) / long.progress.output_tokens
    await stop(running)
    since_s = time.monotonic()
    assert isinstance((await waiting)[-1], Finished)
    assert time.monotonic() - since_s < per_token_s * (900 - long.progress.output_tokens) / 2


async def test_a_more_urgent_job_starts_before_those_who_waited_longer(ranking_engine):
    order = []

    async def run(name, rank):
        async for _ in ranking_engine.run(job(name, rank=rank, max_tokens=3)):
            if name not in order:
                order.append(name)

    running = asyncio.create_task(collect(ranking_engine, long_job(rank=7)))
    await until(lambda: ranking_engine.load().running == 1)
    tasks = [asyncio.create_task(run(name, 2)) for name in ("low1", "low2")]
    await until(lambda: ranking_engine.load().waiting == 2)
    tasks.append(asyncio.create_task(run("high", 0)))
    await until(lambda: ranking_engine.load().waiting == 3)
    assert (ranking_engine.load().running, order) == (1, [])
    await stop(running)
    await asyncio.gather(*tasks)

    assert order == ["high", "low1", "low2"]


async def test_many_jobs_run_at_once_and_each_ends(engine):
    answers = await asyncio.gather(*(collect(engine, job(str(n), stream=n % 2 == 0)) for n in range(6)))

    assert all(isinstance(items[-1], Finished) for items in answers)
    assert (engine.load().running, engine.load().waiting) == (0, 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_job_leaves_the_engine_which_goes_on(engine, stream):
    task = asyncio.create_task(collect(engine, long_job(stream=stream)))
    await asyncio.sleep(0.02)
    assert engine.load().running == 1
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

    await settle(engine)
    assert isinstance((await collect(engine, job()))[-1], Finished)


async def test_a_closed_iterator_leaves_the_engine_too(engine):
    items = engine.run(long_job(stream=True))
    assert isinstance(await anext(items), Piece)
    await items.aclose()

    await settle(engine)


async def test_an_aborted_job_says_how_much_it_had_made(engine):
    aborted = long_job(stream=True)
    items = engine.run(aborted)
    for _ in range(5):
        await anext(items)
    await items.aclose()

    assert 3 <= aborted.progress.output_tokens < 900


@pytest.mark.parametrize("body", [b"[]", b"nonsense", b""])
async def test_a_body_that_is_no_request_fails_for_good(engine, body):
    with pytest.raises(EngineError) as raised:
        await collect(engine, Job("r1", "m", body, 1, None, 0, stream=False))

    assert not raised.value.retryable


async def test_a_closed_engine_asks_to_try_elsewhere(engine_to_close):
    caught = asyncio.create_task(collect(engine_to_close, long_job()))
    await asyncio.sleep(0.02)
    await engine_to_close.close()
    for task in (caught, asyncio.create_task(collect(engine_to_close, job()))):
        with pytest.raises(EngineError) as raised:
            await task
        assert raised.value.retryable
