"""What consumers tell of cost: usage of attempts that did not end well, capacity in telemetry."""

import asyncio
import time

import pytest

from tests.support.gpu import wait_until
from tests.support.openai_server import serve
from topics import codec
from topics.outcomes import Outcome


@pytest.mark.asyncio
async def test_each_failed_attempt_tells_what_it_used_before_the_next_may_run(rig):
    async with serve() as server:
        server.break_after = 3
        consumer = rig.start(engine="openai", openai_base_url=server.url)
        rig.put(rig.work("again", template="t1"))
        await asyncio.to_thread(wait_until, lambda: len(rig.read("retries.1s")) == 1, "the retry", consumer)
        rig.put(rig.work("last", attempt=3))
        await asyncio.to_thread(wait_until, lambda: len(rig.usages()) == 2, "both usages", consumer)
        replies = await asyncio.to_thread(rig.wait_replies, 1)
    again, last = sorted(rig.usages(), key=lambda usage: usage.attempt)
    assert (again.id, again.attempt, again.partial, again.outcome, again.template) == (
        "again",
        1,
        True,
        Outcome.FAILED,
        "t1",
    )
    assert (last.id, last.attempt, last.partial, last.outcome) == ("last", 3, False, Outcome.FAILED)
    for usage in (again, last):
        assert usage.tokens.prompt == usage.expected_prompt_tokens == 100
        assert 1 <= usage.tokens.output <= 3
        assert usage.kv_token_s == pytest.approx((100 + usage.tokens.output / 2) * usage.service_s)
    assert replies["last"].tokens == last.tokens
    assert replies["last"].cost_units > 0


def test_an_attempt_that_failed_before_its_first_token_used_nothing(rig, hosted):
    hosted.server.status = 500
    rig.put(rig.work("r1"))
    consumer = rig.start(engine="openai", openai_base_url=hosted.server.url)
    wait_until(lambda: len(rig.usages()) == 1, "its usage", consumer)
    (usage,) = rig.usages()
    assert (usage.partial, usage.tokens.prompt, usage.tokens.output) == (True, 0, 0)


@pytest.mark.behaviour(11)
def test_what_the_end_of_a_process_cut_off_is_told_and_run_again_by_the_next(rig):
    first = rig.start(engine="simulated", speed=4, grace_s=0.1).wait_ready()
    rig.put(rig.work("long", output_tokens=8000), rig.work("short", output_tokens=50))
    rig.wait_replies(1)
    assert first.terminate() == 0
    wait_until(lambda: any(usage.partial for usage in rig.usages()), "the usage of the cut off one")
    (cut_off,) = [usage for usage in rig.usages() if usage.partial]
    assert (cut_off.id, cut_off.attempt) == ("long", 1)
    assert 40 < cut_off.tokens.output < 8000
    rig.start(engine="simulated", speed=200)
    assert rig.wait_replies(2)["long"].tokens.output == 8000


def test_the_capacity_of_an_idle_consumer_is_unknown_and_that_of_a_busy_one_is_what_it_does(rig):
    consumer = rig.start(engine="simulated", speed=20, window_requests=8).wait_ready()
    wait_until(lambda: len(rig.telemetry()) >= 2, "telemetry", consumer)
    assert {t.capacity_units_per_s for t in rig.telemetry()} == {t.capacity_units for t in rig.telemetry()} == {None}
    assert rig.telemetry()[-1].total_kv_tokens > rig.telemetry()[-1].free_kv_tokens - 1
    for n in range(600):
        rig.producer.produce(
            rig.lane(), value=codec.encode(rig.work(f"r{n}", output_tokens=100, price={"cost_units": 33.7})), key=b"k"
        )
    rig.producer.flush()
    rig.wait_replies(600)
    seen = [t for t in rig.telemetry() if t.capacity_units_per_s is not None]
    busy = [t for t in seen if t.queued_units > 0]
    assert len(busy) >= 2
    finished_units = busy[-1].finished_units_total - busy[0].finished_units_total
    units_per_s = finished_units / (busy[-1].at_s - busy[0].at_s)
    assert busy[-1].capacity_units_per_s == pytest.approx(units_per_s, rel=0.4)
    assert busy[-1].capacity_units == pytest.approx(8 * 33.7, rel=0.3)
    last = rig.telemetry()[-1]
    time.sleep(1)
    wait_until(lambda: rig.telemetry()[-1].at_s > last.at_s, "more telemetry", consumer)
    assert rig.telemetry()[-1].capacity_units_per_s == pytest.approx(busy[-1].capacity_units_per_s, rel=0.2)
