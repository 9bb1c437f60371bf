"""Through the whole pipeline: real Kafka, real Redis, a streams worker, a consumer with vLLM and a real model."""

import json
import os
import signal
import subprocess
import time

import pytest

from tests.support import smollm2
from tests.support.gpu import Consumer
from tests.support.pipeline import Pipeline
from tests.support.streams_worker import Site, StreamsWorker, wait_until
from topics.outcomes import Outcome
from topics.records import Chunk

pytestmark = pytest.mark.timeout(300)
START_S = 120.0


@pytest.fixture(scope="module")
def pipeline(broker, redis_server, model, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    site = Site(broker, redis_server.url, 3)
    worker = StreamsWorker(site.env, logs / "streams.log").start()
    arguments = json.dumps({"enforce_eager": True})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in site.env.items():
            patch.setenv(name, value)
        consumer = Consumer(
            logs / "gpu.log", engine="vllm", pool="cpu", window_requests=8, vllm_model=model,
            vllm_context_tokens=smollm2.CONTEXT_TOKENS, vllm_kv_bytes=smollm2.KV_BYTES, vllm_arguments=arguments,
        )  # fmt: skip
    wait_until(lambda: "status=" in consumer.log() or consumer.process.poll() is not None, START_S)
    yield Pipeline(site, consumer.wait_ready(), model="smollm2-135m")
    consumer.process.kill()
    consumer.process.wait()
    worker.stop()
    site.close()


def text_of(chunks):
    return "".join(json.loads(bytes(chunk.data))["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def test_real_text_is_streamed_to_the_reply_topic(pipeline):
    pipeline.ask("whole", "Why do motorways have ramp meters?", max_tokens=40)
    reply = pipeline.reply("whole")

    assert (reply.outcome, reply.tenant, reply.model) == (Outcome.COMPLETED, "acme", "smollm2-135m")
    *chunks, last = pipeline.answers("whole")
    assert last == reply
    assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))
    assert len(chunks) > 5
    body = json.loads(bytes(reply.body))
    assert text_of(chunks) == body["choices"][0]["message"]["content"]
    assert len(text_of(chunks).split()) > 3
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (
        reply.tokens.prompt,
        reply.tokens.output,
    )
    settled = pipeline.settlement("whole").inputs
    assert settled["real_units"] == pytest.approx(reply.cost_units, abs=0.01)


def test_a_request_cancelled_in_mid_stream_gets_its_unused_cost_back(pipeline):
    pipeline.ask("cut", "Tell a very long story.", max_tokens=1000, ignore_eos=True)
    wait_until(lambda: len(pipeline.answers("cut")) > 5, 60, pipeline.consumer.log)
    since_s = time.monotonic()
    pipeline.cancel("cut")
    reply = pipeline.reply("cut")
    took_s = time.monotonic() - since_s

    assert reply.outcome is Outcome.CANCELLED
    assert 5 <= reply.tokens.output < 900
    settled = pipeline.settlement("cut").inputs
    print(
        f"cancelled in {took_s:.2f} s after {reply.tokens.output} tokens: {settled['reserved_units']:.1f} units", end=""
    )
    print(f" reserved, {settled['real_units']:.1f} used, {settled['refunded_units']:.1f} given back")
    assert settled["reserved_units"] == pytest.approx(settled["real_units"] + settled["refunded_units"], abs=0.01)
    assert settled["refunded_units"] > settled["real_units"] > 0
    wait_until(lambda: pipeline.consumer.metric("inflight_requests") == 0, 10)
    count = len(pipeline.answers("cut"))
    pipeline.ask("next", "Say yes.", max_tokens=5)
    assert pipeline.reply("next").outcome is Outcome.COMPLETED
    assert len(pipeline.answers("cut")) == count
    assert all(isinstance(answer, Chunk) for answer in pipeline.answers("cut")[:-1])


def test_no_prompt_is_in_the_log(pipeline):
    assert "motorways" not in pipeline.consumer.log()
    assert "long story" not in pipeline.consumer.log()


def test_the_consumer_ends_when_its_engine_dies(pipeline):
    """Last, since it ends the pipeline."""
    parent = ["--ppid", str(pipeline.consumer.process.pid)]
    listed = subprocess.run(["ps", "-o", "pid=,args=", *parent], capture_output=True, text=True, check=True).stdout
    (core,) = [int(line.split()[0]) for line in listed.splitlines() if "EngineCore" in line or "spawn_main" in line]
    pipeline.ask("orphan", "Tell a very long story.", max_tokens=1000, ignore_eos=True)
    wait_until(lambda: pipeline.answers("orphan"), 60, pipeline.consumer.log)
    os.kill(core, signal.SIGKILL)

    assert pipeline.consumer.process.wait(60) == 69
    assert "engine_dead" in pipeline.consumer.log()
