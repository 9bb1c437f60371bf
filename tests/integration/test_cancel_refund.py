"""What a cancel through the real control topic gives back, by a real streams worker and a real consumer."""

import pytest

from tests.support.gpu import Consumer
from tests.support.pipeline import Pipeline
from tests.support.streams_worker import Site, StreamsWorker, wait_until
from topics import clients, keys
from topics.outcomes import Outcome, Reason
from topics.records import Priority

REFILL_UNITS_PER_S = 5000.0
CANCEL_S = 3.0
"""Bound of the test; one second on a machine that has nothing else to do."""


@pytest.fixture(scope="module")
def pipeline(broker, redis_server, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    bucket = {"refill_units_per_s": REFILL_UNITS_PER_S, "burst_s": 3600, "warm_up_s": 0}
    site = Site(
        broker, redis_server.url, 6, tenant_budget=bucket, global_budget=bucket, pool_budget=bucket,
        class_budgets=dict.fromkeys(Priority, bucket), fair={"window_s": 1e6},
    )  # fmt: skip
    worker = StreamsWorker(site.env, logs / "streams.log").start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in site.env.items():
            patch.setenv(name, value)
        consumer = Consumer(logs / "gpu.log", window_requests=1, buffer_records=2, poll_records=1, speed=0.1)
    yield Pipeline(site, consumer.wait_ready(), model="llama-3-8b")
    consumer.process.kill()
    consumer.process.wait()
    worker.stop()
    site.close()


def balance(pipeline):
    """The tenant's level as of a moment by Redis' clock."""
    with clients.redis_sync(pipeline.site.settings) as redis:
        key = keys.of(pipeline.site.settings).bucket("tenant", "acme")
        level, as_of = redis.hmget(key, "level", "as_of")
    return float(level), float(as_of)


def cancelled(pipeline, request_id):
    """Its reply and settlement; the answer comes soon after the order."""
    order = pipeline.cancel(request_id)
    reply = pipeline.reply(request_id)
    assert (reply.outcome, reply.reason) == (Outcome.CANCELLED, Reason.CANCELLED)
    took_s = reply.timing.finished_s - order.at_s
    settled = pipeline.settlement(request_id).inputs
    assert settled["reserved_units"] == pytest.approx(settled["real_units"] + settled["refunded_units"], abs=0.01)
    print(
        f"{request_id}: {took_s:.3f} s, {settled['refunded_units']:.1f} of {settled['reserved_units']:.1f} units back"
    )
    return took_s, reply, settled


def test_what_runs_is_buffered_or_lies_on_its_lane_ends_and_its_unused_cost_is_back_in_the_budget(pipeline):
    consumer = pipeline.consumer
    pipeline.ask("running", "Tell a long story.", max_tokens=1000, simulated_output_tokens=1000)
    wait_until(lambda: len(pipeline.answers("running")) > 3, 30, consumer.log)
    fillers = [f"filler{n}" for n in range(8)]
    for name in ("buffered", *fillers, "behind"):
        pipeline.ask(name, "Tell a long story.", max_tokens=1000, simulated_output_tokens=1000)
    wait_until(lambda: consumer.metric("paused_partitions") == 2, 30, consumer.log)
    assert consumer.metric("queued_requests") < 9, "not all are fetched"
    assert {pipeline.admission(name).verdict for name in ("buffered", *fillers, "behind")} == {"admit"}
    level, as_of_s = balance(pipeline)

    took_s, reply, unused = cancelled(pipeline, "buffered")
    assert took_s < CANCEL_S
    assert (reply.tokens.prompt, reply.tokens.output, unused["real_units"]) == (0, 0, 0.0)
    took_s, reply, used = cancelled(pipeline, "running")
    assert took_s < CANCEL_S
    assert 3 <= reply.tokens.output < 1000
    assert used["refunded_units"] > 0
    refunded = unused["refunded_units"] + used["refunded_units"]
    pipeline.cancel("behind")
    for name in fillers:
        refunded += cancelled(pipeline, name)[2]["refunded_units"]
    reply = pipeline.reply("behind")
    assert (reply.outcome, reply.timing.started_s, reply.tokens.output) == (Outcome.CANCELLED, None, 0)
    refunded += pipeline.settlement("behind").inputs["refunded_units"]

    after, after_s = balance(pipeline)
    flowed_in = REFILL_UNITS_PER_S * (after_s - as_of_s)
    assert after - level - flowed_in == pytest.approx(refunded, abs=0.5)
    assert refunded > 9 * 270
