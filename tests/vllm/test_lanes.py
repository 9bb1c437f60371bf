"""From lanes full of work into vLLM: how much of its speed comes through, what waits inside, who is next."""

import asyncio
import json
import time
from statistics import median

import msgspec
import pytest

from gpu_consumers.engine import Job
from tests.support import smollm2
from tests.support.gpu import wait_until
from topics.outcomes import Outcome
from topics.records import Tier

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

WINDOW = 16
REQUESTS, ROUNDS = 128, 3
MIDDLE = (0.15, 0.9)
"""Part of a run that counts: the engine is full."""
RATIO_AT_LEAST = 0.97
START_S, RUN_S = 240.0, 180.0
WAITING_AT_MOST = 2


def tokens(number):
    """Answers of 16 to 48 tokens, so that they do not end in waves."""
    return 16 + number * 7 % 33


def body(number):
    message = {"role": "user", "content": f"{number}: why do motorways have ramp meters?"}
    return json.dumps({"model": "smollm2-135m", "messages": [message], "ignore_eos": True, "temperature": 0}).encode()


def pace(ended_s):
    """Requests a second in the middle of a run."""
    first, last = (int(len(ended_s) * part) for part in MIDDLE)
    ended_s = sorted(ended_s)
    return (last - first) / (ended_s[last] - ended_s[first])


async def direct(engine, turn):
    """A window that is always full, without any consumer."""
    seats, ended_s = asyncio.Semaphore(WINDOW), []

    async def run(number):
        async with seats:
            job = Job(f"d{turn}-{number}", "smollm2-135m", body(number), 20, tokens(number), 2, stream=True)
            async for _ in engine.run(job):
                pass
            ended_s.append(time.time())

    await asyncio.gather(*(run(number) for number in range(REQUESTS)))
    return pace(ended_s)


def put(rig, prefix, numbers, tier=Tier.MEDIUM):
    works = [
        rig.work(
            f"{prefix}-{number}", stream=True, body=msgspec.Raw(body(number)), model="smollm2-135m",
            max_tokens=tokens(number),
            price={"pool": "default", "cost_units": 30.0, "expected_output_tokens": 32}, prompt_tokens=20,
        )
        for number in numbers
    ]  # fmt: skip
    rig.put(*works, lane=rig.lane(tier))


def answered(rig, prefix):
    return [reply for reply in rig.replies() if reply.id.startswith(f"{prefix}-")]


def through(rig, turn):
    """The same from a lane that is never empty."""
    put(rig, f"t{turn}", range(REQUESTS))
    wait_until(lambda: len(answered(rig, f"t{turn}")) >= REQUESTS, "all are answered", rig.consumers[-1], RUN_S)
    replies = answered(rig, f"t{turn}")
    assert {reply.outcome for reply in replies} == {Outcome.COMPLETED}
    return pace([reply.timing.finished_s for reply in replies])


@pytest.fixture
def consumer(rig, model):
    arguments = json.dumps({"enforce_eager": True})
    made = rig.start(
        engine="vllm", window_requests=WINDOW, vllm_model=model, vllm_context_tokens=smollm2.CONTEXT_TOKENS,
        vllm_kv_bytes=smollm2.KV_BYTES, vllm_arguments=arguments, lease_s=6, renew_s=2,
    )  # fmt: skip
    wait_until(lambda: "status=" in made.log(), "vLLM starts", made, START_S)
    return made.wait_ready()


async def test_lanes_keep_it_as_fast_as_it_is_when_driven_directly(engine, rig, consumer):
    await direct(engine, "warm")
    await asyncio.to_thread(through, rig, "warm")
    paces = {"direct": [], "through": []}
    for turn in range(ROUNDS):
        paces["direct"].append(await direct(engine, turn))
        paces["through"].append(await asyncio.to_thread(through, rig, turn))
    ratio = median(paces["through"]) / median(paces["direct"])
    print(f"{paces}: {ratio:.3f} times")
    assert ratio >= RATIO_AT_LEAST


async def test_what_waits_does_so_outside_and_a_high_request_is_next(rig, consumer):
    put(rig, "low", range(REQUESTS), Tier.LOW)
    wait_until(lambda: len(answered(rig, "low")) >= WINDOW, "the engine is full", consumer, RUN_S)
    at_s = time.time()
    put(rig, "high", [0], Tier.HIGH)
    waiting = []
    while len(answered(rig, "low")) < REQUESTS - WINDOW:
        waiting.append(consumer.metric("engine_waiting_requests"))
    wait_until(lambda: len(answered(rig, "low")) >= REQUESTS, "all are answered", consumer, RUN_S)
    (high,) = answered(rig, "high")
    before = [reply for reply in answered(rig, "low") if at_s < reply.timing.started_s < high.timing.started_s]
    took_s = high.timing.started_s - at_s
    most = max(waiting)
    print(
        f"waited inside: at most {most:.0f} in {len(waiting)} looks; high after {took_s:.2f} s, {len(before)} before it"
    )
    assert len(waiting) > 50
    assert most <= WAITING_AT_MOST
    assert len(before) <= WAITING_AT_MOST
