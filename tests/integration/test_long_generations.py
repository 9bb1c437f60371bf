"""Generations that take longer than anything waits for costs no membership, no health and no second attempt."""

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry

from gpu_consumers.consumer import GpuConsumer
from gpu_consumers.engines.simulated import SimulatedEngine, SimulatedOptions
from gpu_consumers.settings import GpuSettings
from tests.support.clock import FakeClock
from topics import catalog, clients
from topics.outcomes import Outcome
from topics.records import Length
from topics.settings import load


def member_ids(admin, group):
    """The group's members, as the broker knows them now."""
    return {member.member_id for member in admin.describe_consumer_groups([group])[group].result().members}


@pytest.mark.behaviour(9)
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("poll_interval_s", "takes_s"), [(6, 14), pytest.param(30, 180, marks=pytest.mark.slow, id="three-minutes")]
)
def test_a_generation_longer_than_the_poll_interval_costs_no_membership(rig, monkeypatch, poll_interval_s, takes_s):
    monkeypatch.setenv("RAMPMETER_KAFKA__MAX_POLL_INTERVAL_MS", str(poll_interval_s * 1000))
    consumer = rig.start(engine="simulated", stall_s=2).wait_ready()
    admin, group = clients.admin(rig.settings), catalog.gpu_group(rig.settings, "default")
    (member,) = member_ids(admin, group)
    began_s = time.monotonic()
    rig.put(rig.work("long", output_tokens=takes_s * 120), lane=rig.lane(length=Length.LONG))
    beside = 0
    while "long" not in rig.by_id():
        rig.put(rig.work(f"short{beside}", output_tokens=1))
        beside += 1
        rig.wait_replies(beside)
        assert member_ids(admin, group) == {member}
        assert consumer.get("livez")[0] == 200
        assert time.monotonic() - began_s < 5 * takes_s
        time.sleep(1)
    assert time.monotonic() - began_s > 2 * poll_interval_s
    assert (rig.by_id()["long"].outcome, rig.by_id()["long"].attempt) == (Outcome.COMPLETED, 1)
    assert consumer.metric("rebalances_total") == consumer.metric("rebalances_total", kind="assigned")
    assert consumer.metric("claims_total") == consumer.metric("claims_total", verdict="mine")
    assert consumer.terminate() == 0


@pytest.mark.behaviour(9)
@pytest.mark.asyncio
async def test_a_generation_of_twenty_minutes_is_healthy_all_along_and_answered_once(rig):
    settings, clock = load(GpuSettings), FakeClock(wall_s=time.time())
    gpu = settings.gpu.model_copy(update={"window_requests": 1, "stall_s": 120.0})
    settings = settings.model_copy(update={"gpu": gpu})
    engine = SimulatedEngine(SimulatedOptions(speed=0.02, max_sequences=1), clock)
    consumer, stop = GpuConsumer(settings, engine, clock, CollectorRegistry()), asyncio.Event()
    running = asyncio.create_task(consumer.run(stop, asyncio.Event()))
    lane = rig.lane(length=Length.LONG)
    rig.put(rig.work("long", output_tokens=3000), rig.work("behind", output_tokens=1), lane=lane, partition=0)
    while engine.load().running < 1:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)
    complaints, began_s = set(), clock.mono_s()
    while engine.load().running and clock.mono_s() - began_s < 1150:
        clock.advance(1.0)
        await asyncio.sleep(0.01)
        complaints.add(consumer.health.live())
    assert complaints == {None}
    assert rig.replies() == []
    while len(await asyncio.to_thread(rig.replies)) < 2:
        clock.advance(10.0)
    replies = rig.by_id()
    stop.set()
    await running
    assert {reply.outcome for reply in replies.values()} == {Outcome.COMPLETED}
    assert replies["long"].timing.finished_s - replies["long"].timing.started_s > 1150
