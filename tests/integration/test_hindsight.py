"""`replay-decisions` and `what-if` on what a real worker, a real broker and a real consumer have left behind."""

import json

import msgspec
import pytest
from typer.testing import CliRunner

from rampmeter import cli
from rampmeter.hindsight import replay
from tests.support.gpu import Consumer
from tests.support.streams_worker import Site, StreamsWorker, chat, send
from topics import codec
from topics.records import Priority, Reply

PROMPT = "sentinel-prompt-text"
ENOUGH = {"refill_units_per_s": 1e6, "warm_up_s": 0}
POOR = {"refill_units_per_s": 1.0, "burst_s": 100.0, "warm_up_s": 0}
RICHER = ["--set", "streams.tenant_budgets.poor.refill_units_per_s=1e6"]


@pytest.fixture
def site(broker, redis_server, tmp_path, monkeypatch):
    made = Site(
        broker, redis_server.url, 4, tenant_budget=ENOUGH, tenant_budgets={"poor": POOR}, global_budget=ENOUGH,
        pool_budget=ENOUGH, class_budgets=dict.fromkeys(Priority, ENOUGH), max_deferral_s=2,
    )  # fmt: skip
    worker = StreamsWorker(made.env, tmp_path / "worker.log").start()
    for name, value in made.env.items():
        if name != "RAMPMETER_STREAMS":
            monkeypatch.setenv(name, value)
    consumer = Consumer(tmp_path / "gpu.log", engine="simulated").wait_ready()
    yield made
    consumer.kill()
    assert worker.stop() == 0
    made.close()


def ask(site, count):
    records = []
    for number in range(count):
        tenant = b"poor" if number % 3 == 0 else b"acme"
        headers = [("rampmeter_id", b"%s-%d" % (tenant, number)), ("rampmeter_tenant", tenant)]
        value = chat(text=PROMPT, max_tokens=40, simulated_output_tokens=20 + number % 9)
        records.append((value, tenant, headers, number % 2))
    send(site.settings, "requests.medium.short", records)


def command(site, *args, status=0):
    done = CliRunner().invoke(cli.app, [*args, "--json"], env=site.env)
    assert done.exit_code == status, (done.output, done.exception)
    assert PROMPT not in done.output
    return json.loads(done.stdout.splitlines()[-1])


def settled(messages, count):
    decisions = [codec.decode_decision(m.value()) for m in messages if m.topic().endswith("decisions")]
    replies = [codec.decode_answer(m.value()) for m in messages if m.topic().endswith("replies")]
    ended = sum(isinstance(reply, Reply) for reply in replies)
    charged = sum(decision.stage == "settlement" for decision in decisions)
    return decisions if ended >= count and charged >= count * 2 // 3 else None


def test_a_log_is_replayed_and_asked_what_another_budget_and_more_replicas_had_done(site, monkeypatch):
    log = site.log("replies", "decisions")
    ask(site, 30)
    decisions = log.until(lambda messages: settled(messages, 30), 60)

    same = command(site, "replay-decisions")
    assert (same["differ"], same["other_settings"], same["records_gone"]) == (0, 0, 0)
    assert same["by_stage"]["admission"] >= 30
    monkeypatch.setattr(replay, "WAITING", 7)
    assert command(site, "replay-decisions") == same
    had_been = command(site, "replay-decisions", "--set", "streams.long_max_tokens=10", status=1)
    assert {"field": "length", "logged": "short", "again": "long"} in had_been["differences"][0]["fields"]

    taken = next(decision for decision in decisions if decision.verdict == "admit")
    forged = msgspec.structs.replace(taken, inputs={**taken.inputs, "tenant": "someone-else"})
    at = site.send(codec.encode(forged), "decisions", taken.id.encode())
    (found,) = command(site, "replay-decisions", status=1)["differences"]
    assert (found["id"], found["partition"], found["offset"]) == (taken.id, at.partition, at.offset)

    answer = command(site, "what-if", *RICHER, "--replicas", "2")
    truth, logged, changed = (answer[name]["outcomes"] for name in ("truth", "logged", "changed"))
    assert (truth["completed"] + truth["rejected_budget"], truth["rejected_budget"]) == (30, answer["guessed_outputs"])
    assert logged["rejected_budget"] > 0
    assert changed == {"completed": 30}
    assert answer["difference"]["cost_units.poor"] > 0
    assert answer["replicas"] == {"logged": 1, "changed": 2}
    for name in ("ttft_s.short.p50", "e2e_s.short.p99"):
        assert answer["error"][name]["ratio"] is not None
        assert 0 < answer["error"][name]["simulated"] < 30
