"""What vLLM must do besides what every engine must."""

import asyncio
import json
import multiprocessing
import time

import pytest

from tests.support.engine_conformance import collect, job, long_job, settle, until
from topics.errors import EngineError
from topics.trace_context import TraceContext

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
BLOCK_TOKENS = 128


async def test_usage_comes_from_the_engine_with_what_the_prefix_cache_held(engine):
    text = "A long common beginning. " * 60
    first = (await collect(engine, job(text=text)))[-1]
    again = (await collect(engine, job(text=text)))[-1]

    assert (first.tokens.cached, first.tokens.output) == (0, 4)
    assert first.tokens.prompt == again.tokens.prompt > 300
    assert again.tokens.cached >= 2 * BLOCK_TOKENS
    usage = json.loads(again.body)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == again.tokens.cached
    assert usage["total_tokens"] == again.tokens.prompt + 4


async def test_sampling_fields_reach_the_model(engine):
    text = json.loads((await collect(engine, job(max_tokens=30, ignore_eos=True)))[-1].body)["choices"][0]["message"]
    word = text["content"].split()[2]
    stopped = (await collect(engine, job(max_tokens=30, ignore_eos=True, stop=[word])))[-1]
    choice = json.loads(stopped.body)["choices"][0]

    assert choice["finish_reason"] == "stop"
    assert word not in choice["message"]["content"]
    seeded = [await collect(engine, job(temperature=1.0, seed=7, max_tokens=12, stream=True)) for _ in range(2)]
    assert json.loads(seeded[0][-1].body)["choices"] == json.loads(seeded[1][-1].body)["choices"]


async def test_a_schema_binds_the_answer(engine):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    finished = (await collect(engine, job(max_tokens=40, response_format=wanted)))[-1]

    assert json.loads(json.loads(finished.body)["choices"][0]["message"]["content"])["n"] in (1, 2)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 3.0}, "top_p"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"best_guess": True}, "best_guess"),
        ({"text": "secret words " * 2000}, "context 2048"),
    ],
)
async def test_what_it_cannot_do_is_refused_for_good(engine, fields, said):
    with pytest.raises(EngineError, match=said) as raised:
        await collect(engine, job(**fields))

    assert not raised.value.retryable
    assert "secret" not in str(raised.value)
    assert engine.load().running == 0


async def test_an_abort_frees_the_sequence_and_its_memory_and_nothing_more_comes(engine):
    assert engine.load().free_kv_tokens == engine.load().total_kv_tokens == 46_592
    aborted = long_job(stream=True, text="How do I count to five? " * 80)
    came = []

    async def read():
        came.extend([item async for item in engine.run(aborted)])

    task = asyncio.create_task(read())
    await until(lambda: aborted.progress.output_tokens > 5)
    assert engine.load().total_kv_tokens - engine.load().free_kv_tokens >= 4 * BLOCK_TOKENS
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    made = aborted.progress.output_tokens
    assert (engine.load().running, engine._llm.get_num_unfinished_requests()) == (0, 0)

    other = long_job(stream=True)
    items = engine.run(other)
    for _ in range(10):
        await anext(items)
    # The figures of a step in which only the other one is left: one block.
    assert 0 < engine.load().total_kv_tokens - engine.load().free_kv_tokens < 2 * BLOCK_TOKENS
    await items.aclose()
    assert (aborted.progress.output_tokens, came) == (made, [])


TRACE = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "sender=1")


async def test_a_trace_is_passed_over_in_silence_while_vllm_makes_no_spans(engine, capfd):
    assert (await collect(engine, job(trace=TRACE)))[-1].tokens.output == 4
    assert "trac" not in "".join(capfd.readouterr())


async def test_a_trace_reaches_vllm_where_it_makes_spans(engine, monkeypatch):
    processor, known = engine._llm.output_processor, []

    def process(outputs, *rest, take=processor.process_outputs, **more):
        known.extend(output.trace_headers for output in outputs)
        return take(outputs, *rest, **more)

    async def known_of(a_job):
        known.clear()
        await collect(engine, a_job)
        return known[0]

    monkeypatch.setattr(processor, "process_outputs", process)
    assert await known_of(job(trace=TRACE)) is None
    monkeypatch.setattr(engine._llm.observability_config, "otlp_traces_endpoint", "http://collector.invalid")
    assert await known_of(job(trace=TRACE)) == TRACE.texts()
    assert await known_of(job()) is None


async def test_the_death_of_its_process_is_fatal_and_worth_another_try_elsewhere(start):
    before = set(multiprocessing.active_children())
    engine = await start(window_requests=1)
    (core,) = set(multiprocessing.active_children()) - before
    try:
        task = asyncio.create_task(collect(engine, long_job()))
        await asyncio.sleep(0.01)
        core.kill()
        for caught in (task, asyncio.create_task(collect(engine, job()))):
            with pytest.raises(EngineError) as raised:
                await asyncio.wait_for(caught, 20)
            assert (raised.value.fatal, raised.value.retryable) == (True, True)
        await settle(engine)
    finally:
        await engine.close()


async def test_how_fast_it_is(engine, record_property):
    since_s = time.monotonic()
    items = engine.run(job(max_tokens=64, ignore_eos=True, stream=True))
    await anext(items)
    first_s = time.monotonic() - since_s
    await items.aclose()
    since_s = time.monotonic()
    many = [collect(engine, job(str(n), max_tokens=32, ignore_eos=True, stream=True)) for n in range(16)]
    tokens = sum(items[-1].tokens.output for items in await asyncio.gather(*many))
    rate = tokens / (time.monotonic() - since_s)

    print(f"time to first token {first_s:.2f} s, {rate:.0f} tokens/s with 16 at once")
    assert tokens == 16 * 32
