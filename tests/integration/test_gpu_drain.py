"""The order to drain: what runs ends, what waits goes to the others, and the process stays until it is ended."""

import json

from typer.testing import CliRunner

from rampmeter import cli
from rampmeter.draining import NoConsumer
from tests.support.gpu import wait_until
from topics.outcomes import Outcome

OUTPUT_TOKENS = 2500
"""About 15 s of the simulated engine at `speed` 2: longer than the drain of a rebalance."""


def state_of(rig, consumer_id):
    reports = [report for report in rig.telemetry() if report.consumer == consumer_id]
    return (reports[-1].state, reports[-1].inflight_requests, len(reports[-1].lanes)) if reports else None


def test_a_drained_consumer_ends_what_it_runs_while_another_serves_its_partitions(rig):
    first = rig.start(engine="simulated", consumer_id="first", window_requests=2, speed=2).wait_ready()
    for n in range(2):
        rig.put(rig.work(f"long-{n}", output_tokens=OUTPUT_TOKENS))
    wait_until(lambda: first.metric("inflight_requests") == 2, "both run", first)
    rig.put(*(rig.work(f"waits-{n}", output_tokens=3) for n in range(4)))
    rig.drain("first")
    wait_until(lambda: first.get("readyz") == (503, "draining\n"), "it drains", first)
    second = rig.start(engine="simulated", consumer_id="second", speed=50).wait_ready()
    rig.put(rig.work("new", output_tokens=3))
    assert {f"waits-{n}" for n in range(4)} | {"new"} <= set(rig.wait_replies(5))
    assert state_of(rig, "first") == ("draining", 2, 0), "its long work is neither cut nor given away"

    replies = rig.wait_replies(7, limit_s=60)
    assert {reply.outcome for reply in replies.values()} == {Outcome.COMPLETED}
    assert {replies[f"long-{n}"].consumer for n in range(2)} == {"first"}
    assert len(rig.by_id()) == 7
    wait_until(lambda: state_of(rig, "first") == ("draining", 0, 0), "it says that it is done", first)
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == 7, "all is committed", second)
    assert (first.get("livez")[0], first.terminate()) == (200, 0)


def test_the_order_to_another_consumer_is_none(rig):
    consumer = rig.start(engine="simulated", consumer_id="first", speed=50).wait_ready()
    rig.drain("firs")
    rig.drain("first-2")
    rig.put(rig.work("r1", output_tokens=3))
    assert set(rig.wait_replies(1)) == {"r1"}
    assert consumer.get("readyz")[0] == 200


def test_the_command_drains_a_pool_and_says_when_nothing_runs_any_more(rig):
    consumer = rig.start(engine="simulated", consumer_id="first", speed=2).wait_ready()
    rig.put(rig.work("long", output_tokens=1500))
    wait_until(lambda: consumer.metric("inflight_requests") == 1, "it runs", consumer)
    wait_until(lambda: state_of(rig, "first")[:2] == ("ready", 1), "it says so", consumer)

    running = command("drain", "default", "--wait", "0.1", "--json", status=1)
    assert [order["name"] for order in running["orders"]] == ["first"]
    assert running["running"] == {"first": 1}
    assert command("drain", "first", "--wait", "60", "--json")["running"] == {}
    assert rig.wait_replies(1)["long"].outcome is Outcome.COMPLETED
    assert consumer.terminate() == 0
    wait_until(lambda: state_of(rig, "first")[0] == "gone", "it takes its leave")
    for name in ("default", "first", "no-such"):
        told = CliRunner().invoke(cli.app, ["drain", name])
        assert isinstance(told.exception, NoConsumer), told.output


def command(*args, status=0):
    done = CliRunner().invoke(cli.app, args)
    assert done.exit_code == status, (done.output, done.exception)
    return json.loads(done.stdout.splitlines()[-1])
