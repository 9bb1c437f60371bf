"""Maintenance and warm-up of a real consumer: beside the requests, and before them."""

import asyncio
import statistics
import time

import pytest
from prometheus_client import CollectorRegistry

from gpu_consumers import wiring
from gpu_consumers.consumer import GpuConsumer
from gpu_consumers.engines import factory
from gpu_consumers.maintenance import Maintenance
from gpu_consumers.settings import GpuSettings
from tests.support.gpu import wait_until
from topics.clock import SystemClock
from topics.outcomes import Outcome
from topics.settings import load

BLOCK_S, EVERY_S, REQUESTS, GAP_S = 0.5, 5.0, 240, 0.05


async def served(rig, names):
    """From arrival to answer of each, sent at an even pace."""
    for name in names:
        await asyncio.to_thread(rig.put, rig.work(name, output_tokens=2))
        await asyncio.sleep(GAP_S)

    def waits():
        timing = {r.id: r.timing for r in rig.replies()}
        return [timing[n].finished_s - timing[n].arrived_s for n in names if n in timing]

    await asyncio.to_thread(wait_until, lambda: len(waits()) == len(names), "all are answered")
    return waits()


@pytest.mark.asyncio
async def test_maintenance_that_blocks_for_half_a_second_every_five_leaves_the_p99_of_shorts_as_it_is(rig, monkeypatch):
    monkeypatch.setenv("RAMPMETER_GPU__SPEED", "20")
    settings, clock = load(GpuSettings), SystemClock()
    engine = await factory.start(wiring.engine_options(settings.gpu), clock)
    consumer = GpuConsumer(settings, engine, clock, CollectorRegistry())
    blocked = []

    def block():
        time.sleep(BLOCK_S)
        blocked.append(clock.wall_s())

    slow = Maintenance([block], EVERY_S - BLOCK_S, BLOCK_S / EVERY_S, clock)
    stop = asyncio.Event()
    running = asyncio.create_task(consumer.run(stop, asyncio.Event()))
    await served(rig, ["first"])
    calm = await served(rig, [f"calm{n}" for n in range(REQUESTS)])
    slow.start()
    beside = await served(rig, [f"beside{n}" for n in range(REQUESTS)])
    slow.stop()
    stop.set()
    await running
    await engine.close()
    assert len(blocked) >= 2
    p99 = [statistics.quantiles(waits, n=100)[98] for waits in (calm, beside)]
    print(f"p99 of shorts {p99[0] * 1000:.0f} ms alone, {p99[1] * 1000:.0f} ms beside maintenance")
    assert p99[1] < max(2 * p99[0], BLOCK_S / 2)


def test_the_engine_is_warm_before_the_consumer_is_ready_and_reports_follow(rig, hosted):
    hosted.server.pause_s = 0.3
    consumer = rig.start(engine="openai", openai_base_url=hosted.server.url, warm_up_s=20, maintenance_interval_s=0.5)
    wait_until(lambda: consumer.get("readyz") == (503, "the engine warms up\n"), "it warms up", consumer)
    assert consumer.get("livez")[0] == 200
    consumer.wait_ready()
    assert len(hosted.server.bodies) == 1
    rig.put(rig.work("r1"))
    assert rig.wait_replies(1)["r1"].outcome is Outcome.COMPLETED
    wait_until(lambda: "answered=1" in consumer.log(), "a report", consumer)
    assert consumer.terminate() == 0


@pytest.mark.parametrize("ends", [True, False])
def test_a_server_that_is_away_delays_the_start_no_longer_than_the_warm_up_may_take(rig, hosted, ends):
    hosted.server.pause_s = 60
    consumer = rig.start(
        engine="openai", openai_base_url=hosted.server.url, warm_up_s=60 if ends else 1, openai_probe_s=0.1
    )
    if ends:
        wait_until(lambda: hosted.server.bodies, "it warms up", consumer)
        assert consumer.terminate() == 0
    else:
        consumer.wait_ready()
        assert "warm_up_unfinished" in consumer.log()
