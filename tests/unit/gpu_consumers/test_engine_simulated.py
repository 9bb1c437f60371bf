import asyncio
import heapq
import random

import msgspec
import pytest

from gpu_consumers.engine import Finished, Job, Piece
from gpu_consumers.engines.iteration_model import FREE_TOKENS, PRESETS, Hardware, IterationModel, Mark, Sequence
from gpu_consumers.engines.simulated import SimulatedEngine, SimulatedOptions, output_tokens, words
from tests.support.clock import FakeClock
from topics.clock import SystemClock
from topics.errors import ConfigError, EngineError

A100 = PRESETS["a100-8b"]


def run_all(model):
    events = []
    while (next_s := model.next_event_s()) is not None:
        events += model.advance(next_s)
    return events


def saturation_rps(rows, engines, preset="a100-8b", max_sequences=64):
    """Requests per second with the whole backlog present, in virtual time; rows are (prompt, output) tokens."""
    end_s = 0.0
    for first in range(engines):
        model = IterationModel(PRESETS[preset], max_sequences)
        for number, (prompt, output) in enumerate(rows[first::engines]):
            model.add(Sequence(str(number), prompt, output), 0, 0.0)
        end_s = max(end_s, run_all(model)[-1].at_s)
    return len(rows) / end_s


def naive(jobs, hardware, max_sequences, chunk_tokens, long_prefill_tokens):  # noqa: C901, PLR0912 - as plain as it goes
    """The same engine, one iteration and one token at a time."""
    now_s, events, queue, running = -1.0, [], [], []
    arrivals = sorted(jobs, key=lambda job: job["at_s"])
    while arrivals or queue or running:
        if not queue and not running and arrivals[0]["at_s"] > now_s:  # it starts an idle engine by itself
            now_s, due = arrivals[0]["at_s"], 1
        else:
            due = sum(job["at_s"] <= now_s for job in arrivals)
        for job in arrivals[:due]:
            heapq.heappush(queue, (job["rank"], job["order"], job))
        arrivals = arrivals[due:]
        decodes = [job for job in running if job["left"] == 0]
        budget = chunk_tokens - len(decodes)
        has_short = any(not job["is_long"] for job in running + [item[2] for item in queue])
        long_budget = long_prefill_tokens if has_short else chunk_tokens
        chunks = []

        def read(job, chunks=chunks):
            nonlocal budget, long_budget
            count = min(budget, job["left"], long_budget if job["is_long"] else budget)
            budget -= count
            long_budget -= count * job["is_long"]
            chunks.append((job, count))

        for job in running:
            if job["left"]:
                read(job)
        while budget and queue and len(running) < max_sequences:
            job = queue[0][2]
            if sum(r["prompt"] + r["output"] for r in running) + job["prompt"] + job["output"] > hardware.kv_tokens:
                break
            if job["is_long"] and not long_budget:
                break
            heapq.heappop(queue)
            running.append(job)
            read(job)
        tokens = chunk_tokens - budget
        resident = sum(job["prompt"] - job["left"] + max(0, job["made"] - 1) for job in running)
        now_s += (
            hardware.base_s + hardware.per_token_s * max(0, tokens - FREE_TOKENS) + hardware.per_kv_token_s * resident
        )
        for job in decodes:
            job["made"] += 1
        for job, count in chunks:
            job["left"] -= count
            if count and job["left"] == 0:
                job["made"] = 1
                events.append((now_s, "first_token", job["id"]))
        for job in [job for job in running if job["made"] >= job["output"]]:
            events.append((now_s, "finished", job["id"]))
            running.remove(job)
    return sorted(events)


@pytest.mark.parametrize("seed", range(40))
def test_it_agrees_with_an_engine_that_runs_token_by_token(seed):
    rng = random.Random(seed)
    hardware = Hardware(0.0115, 67e-6, rng.choice([0.0, 87e-9, 1e-5]), rng.choice([400_000, 6000]))
    jobs = [
        {
            "id": str(n), "order": n, "rank": rng.randrange(3), "made": 0,
            "at_s": rng.choice([0.0, rng.uniform(0, 3)]),
            "prompt": (prompt := rng.choice([1, 100, 900, 5000])), "left": prompt,
            "output": rng.choice([1, 2, 30, 400]), "is_long": rng.random() < 0.5,
        }
        for n in range(40)
    ]  # fmt: skip
    jobs.sort(key=lambda job: job["at_s"])
    for order, job in enumerate(jobs):
        job["order"] = order
    limit = rng.choice([512, 256, 30])
    model, events = IterationModel(hardware, 8, 512, limit), []
    for job in jobs:
        events += model.advance(job["at_s"])
        sequence = Sequence(job["id"], job["prompt"], job["output"], is_long=job["is_long"])
        model.add(sequence, job["rank"], job["at_s"])
        # Looking in at odd moments must change nothing.
        events += model.advance(job["at_s"])
    while (next_s := model.next_event_s()) is not None:
        events += model.advance(min(next_s, (model.boundary_s or 0.0) + rng.uniform(0, 0.2)))

    got = sorted((event.at_s, event.mark.value, event.sequence.id) for event in events)
    want = naive(jobs, hardware, 8, 512, limit)
    assert [(mark, id_) for _, mark, id_ in want] == [(mark, id_) for _, mark, id_ in got]
    assert [at_s for at_s, *_ in got] == pytest.approx([at_s for at_s, *_ in want])
    assert model.busy_s == pytest.approx(sum(e.sequence.engine_s for e in events if e.mark is Mark.FINISHED))
    assert (model.running, model.waiting, model.reserved_kv_tokens) == (0, 0, 0)


def test_a_lone_request_takes_its_prefill_and_its_decodes():
    model = IterationModel(A100)
    model.add(Sequence("a", 128, 101), 0, 5.0)

    first, finished = run_all(model)

    assert (Mark.FIRST_TOKEN, pytest.approx(5.0115)) == (first.mark, first.at_s)
    assert (Mark.FINISHED, pytest.approx(5.0 + 101 * 0.0115, rel=1e-3)) == (finished.mark, finished.at_s)


def test_a_long_prompt_gives_way_to_a_short_decode_and_takes_all_once_that_is_over():
    model = IterationModel(A100, long_prefill_tokens=256)
    model.add(Sequence("decoding", 128, 20), 0, 0.0)
    model.advance(0.0115)
    model.add(Sequence("long prompt", 20_000, 1, is_long=True), 4, 0.0115)

    finished, first, _ = run_all(model)

    assert finished.sequence.id == "decoding"
    assert finished.at_s < 0.05 + 20 * (0.0115 + 256 * 67e-6)
    assert first.at_s - finished.at_s == pytest.approx((20_000 - 19 * 256) / 2048 * 0.15, rel=0.2)


def test_a_decode_beside_a_full_prefill_chunk_is_thirteen_times_slower():
    model = IterationModel(A100)
    model.add(Sequence("decoding", 128, 1000), 0, 0.0)
    model.advance(0.0115)
    model.add(Sequence("long prompt", 100_000, 1), 0, 0.0115)
    model.advance(0.0231)

    assert 0.135 < model.boundary_s - 0.0231 < 0.150


def test_waiting_prompts_go_by_rank_then_arrival():
    model = IterationModel(A100, max_sequences=1)
    for id_, rank in (("running", 0), ("late", 2), ("urgent", 1), ("urgent too", 1)):
        model.add(Sequence(id_, 10, 2), rank, 0.0)

    ended = [event.sequence.id for event in run_all(model) if event.mark is Mark.FINISHED]

    assert ended == ["running", "urgent", "urgent too", "late"]


@pytest.mark.parametrize("at_s", [0.0, 0.1, 0.4, 3.0])
def test_an_aborted_sequence_gives_everything_back_at_once(at_s):
    model = IterationModel(A100, max_sequences=2)
    doomed = [Sequence(f"doomed{n}", 5000, 1000) for n in range(3)]
    for sequence in doomed:
        model.add(sequence, 0, 0.0)
    model.advance(at_s)
    for sequence in doomed:
        model.abort(sequence)
    assert (model.running, model.waiting, model.reserved_kv_tokens) == (0, 0, 0)

    model.add(Sequence("next", 100, 10), 0, at_s)
    events = run_all(model)

    assert [event.sequence.id for event in events] == ["next", "next"]
    assert 0 == model._resident == model._decoding


def test_aborting_one_of_two_leaves_the_other_running():
    model = IterationModel(A100)
    doomed, other = Sequence("doomed", 100, 50), Sequence("other", 100, 100)
    model.add(doomed, 0, 0.0)
    model.add(other, 0, 0.0)
    model.advance(0.3)
    model.abort(doomed)

    assert [event.sequence.id for event in run_all(model)] == ["other"]
    assert model.busy_s == pytest.approx(101 * 0.0115, rel=0.02)


def test_streams_see_each_token_when_it_is_made():
    model = IterationModel(A100)
    sequence = Sequence("a", 10, 3)
    model.add(sequence, 0, 0.0)
    seen = [model.tokens_made(sequence)]
    while model.boundary_s is not None:
        model.advance(model.boundary_s)
        seen.append(model.tokens_made(sequence))

    assert seen == [0, 1, 2, 3]


def test_saturation_of_the_preset_is_near_the_published_model():
    rng = random.Random(7)
    # The mix of the Azure traces: chat with long answers, code with long prompts.
    rows = [
        (int(rng.lognormvariate(6.5, 1.0)), int(rng.lognormvariate(5.0, 0.8)))
        if rng.random() < 0.69
        else (int(rng.lognormvariate(7.4, 0.7)), int(rng.lognormvariate(2.7, 1.0)))
        for _ in range(3000)
    ]

    assert 11 < saturation_rps(rows, engines=2) < 17


def test_a_small_window_costs_capacity():
    rows = [(400, 200)] * 400

    assert saturation_rps(rows, 1, max_sequences=64) > 2 * saturation_rps(rows, 1, max_sequences=8)


def job(id_="r1", max_tokens=None, stream=False, prompt_tokens=100, **fields):
    body = msgspec.json.encode({"messages": [{"role": "user", "content": "hi"}], **fields})
    return Job(id_, "m", body, prompt_tokens, max_tokens, rank=0, stream=stream)


def test_the_body_states_the_output_length_over_max_tokens():
    assert output_tokens(job(max_tokens=20, simulated_output_tokens=300)) == 300
    assert output_tokens(job(simulated_output_tokens=-5)) == 1


def test_an_unstated_output_length_depends_on_the_id_alone_and_keeps_to_max_tokens():
    assert output_tokens(job("x")) == output_tokens(job("x", temperature=1))
    assert 7 >= output_tokens(job("x", max_tokens=7)) >= 1
    assert len({output_tokens(job(str(n))) for n in range(50)}) > 30


def test_a_false_output_length_is_refused_for_good():
    with pytest.raises(EngineError) as raised:
        output_tokens(job(simulated_output_tokens="many"))
    assert not raised.value.retryable


def test_pieces_of_text_join_to_the_whole():
    assert words(0, 40) == words(0, 3) + words(3, 20) + words(23, 17)
    assert len(words(0, 40).split()) == 40


async def collect(engine, clock, a_job):
    """Run a job on a clock that jumps; the shell must not need more real time than a few loop turns."""

    async def jump():
        while True:
            clock.advance(0.5)
            await asyncio.sleep(0)
            engine._wake()

    jumping = asyncio.create_task(jump())
    try:
        return [item async for item in engine.run(a_job)]
    finally:
        jumping.cancel()


@pytest.mark.asyncio
async def test_simulated_seconds_are_clock_seconds_times_speed():
    clock = FakeClock()
    engine = SimulatedEngine(SimulatedOptions(speed=10.0), clock)
    run = engine.run(job(simulated_output_tokens=101, prompt_tokens=128))
    first = asyncio.ensure_future(anext(run))
    await asyncio.sleep(0)
    clock.advance(0.0011)
    engine._wake()
    await asyncio.sleep(0)
    assert not first.done()
    clock.advance(0.0001)
    engine._wake()
    assert Piece(b"") == await first
    clock.advance(0.116)
    engine._wake()
    assert pytest.approx(1.16, rel=0.01) == (await anext(run)).engine_s
    await engine.close()


@pytest.mark.asyncio
async def test_a_late_wake_up_is_caught_up_and_measured():
    clock = FakeClock()
    engine = SimulatedEngine(SimulatedOptions(), clock)

    *pieces, finished = await collect(engine, clock, job(simulated_output_tokens=3))

    assert [Piece(b"")] == pieces
    assert isinstance(finished, Finished)
    assert engine.worst_late_s == pytest.approx(0.5 - 0.0115)
    await engine.close()


@pytest.mark.asyncio
async def test_what_cannot_be_held_is_refused_and_a_full_queue_asks_to_come_back():
    engine = SimulatedEngine(SimulatedOptions(max_sequences=1, max_waiting=1), FakeClock())
    with pytest.raises(EngineError) as never:
        await anext(engine.run(job(prompt_tokens=400_000)))
    assert not never.value.retryable

    held = [asyncio.ensure_future(anext(engine.run(job(str(n))))) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(EngineError) as later:
        await anext(engine.run(job("one too many")))
    assert later.value.retryable

    await engine.close()
    for waiting in held:
        with pytest.raises(EngineError, match="closed"):
            await waiting
    assert engine.load().running == 0


@pytest.mark.asyncio
async def test_the_room_of_an_aborted_job_is_used_at_the_next_iteration():
    engine = SimulatedEngine(SimulatedOptions(speed=1000.0, max_sequences=1), SystemClock())
    long = engine.run(job("long", simulated_output_tokens=10**5, prompt_tokens=1))
    await anext(long)
    waiting = asyncio.ensure_future(anext(engine.run(job("waiting"))))
    await asyncio.sleep(0.02)
    await long.aclose()
    async with asyncio.timeout(0.5):
        assert await waiting == Piece(b"")
    await engine.close()


def test_an_unknown_preset_is_a_configuration_problem():
    with pytest.raises(ConfigError, match="a100-8b"):
        SimulatedEngine(SimulatedOptions(preset="b300"), FakeClock())
