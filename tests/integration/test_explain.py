"""`explain` on what a real worker, a real broker and a real consumer have left behind."""

import json

import pytest
from typer.testing import CliRunner

from rampmeter import cli
from rampmeter.explain import gathering
from tests.support.gpu import Consumer
from tests.support.streams_worker import Site, StreamsWorker, chat, send, wait_until
from topics import codec
from topics.records import Control, ControlAction, ControlKind, Priority, Reply

PROMPT = "sentinel-prompt-text"
ENOUGH = {"refill_units_per_s": 1e6, "warm_up_s": 0}
POOR = {"refill_units_per_s": 1.0, "burst_s": 100.0, "warm_up_s": 0}
WAITS = {"refill_units_per_s": 50.0, "burst_s": 0.4, "warm_up_s": 0}


@pytest.fixture(scope="module")
def site(broker, redis_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    made = Site(
        broker, redis_server.url, 6, tenant_budget=ENOUGH, tenant_budgets={"poor": POOR, "slow": WAITS},
        global_budget=ENOUGH, pool_budget=ENOUGH, class_budgets=dict.fromkeys(Priority, ENOUGH), max_deferral_s=6,
        fair={"hold_s": 0.2},
    )  # fmt: skip
    worker = StreamsWorker(made.env, folder / "worker.log").start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.env.items():
            if name != "RAMPMETER_STREAMS":
                patch.setenv(name, value)
        consumer = Consumer(folder / "gpu.log", engine="simulated").wait_ready()
    try:
        fill(made)
        yield made
    finally:
        consumer.kill()
        worker.stop()
        made.close()


def ask(site, request_id, tenant="acme", **body):
    headers = [("rampmeter_id", request_id.encode()), ("rampmeter_tenant", tenant.encode())]
    return chat(text=PROMPT, **body), tenant.encode(), headers, 0


def fill(site):
    """One request of each kind, and 12 side by side."""
    log = site.log("replies", "decisions")
    records = [ask(site, f"side-{n}", max_tokens=40, simulated_output_tokens=30, stream=True) for n in range(12)]
    records += [ask(site, "slow-1", "slow", max_tokens=60, simulated_output_tokens=40)]
    records += [ask(site, "slow-2", "slow", max_tokens=60, simulated_output_tokens=40)]
    records += [
        ask(site, "too-much", "poor", max_tokens=4000),
        ask(site, "long", max_tokens=9000, simulated_output_tokens=8000),
    ]
    records += [(b'{"messages": "' + PROMPT.encode(), b"acme", [], 0), ask(site, "no-model", model="none-such")]
    site.broken = send(site.settings, "requests.medium.short", records)[-2]

    def ended(count):
        def judge(messages):
            answers = [codec.decode_answer(m.value()) for m in messages if m.topic().endswith("replies")]
            return len({(a.id, a.repeat) for a in answers if isinstance(a, Reply)}) >= count

        return judge

    log.until(ended(len(records) - 1), 60)
    order = Control(id="o-1", action=ControlAction.CANCEL, kind=ControlKind.REQUEST, name="long", at_s=0.0, by="me")
    site.send(codec.encode(order), "control", key=b"request:long")
    send(site.settings, "requests.high.short", [ask(site, "side-0", max_tokens=40)])
    log.until(ended(len(records) + 1), 60)
    wait_until(lambda: settled(log) >= 15, 30)


def settled(log):
    decisions = [codec.decode_decision(m.value()) for m in log.poll() if m.topic().endswith("decisions")]
    return sum(one.stage == "settlement" for one in decisions)


def command(site, *args, status=0):
    done = CliRunner().invoke(cli.app, ["explain", *args], env=site.env)
    assert done.exit_code == status, (done.output, done.exception)
    assert PROMPT not in done.output
    return done


def explained(site, request_id):
    told = json.loads(command(site, request_id, "--json").stdout)
    return told, [event["step"] for event in told["events"]]


def test_a_request_that_ran_is_told_from_its_landing_to_its_charge(site):
    told, steps = explained(site, "side-1")
    in_order = ["received", "priced", "admitted", "placed", "started", "first_token", "ended", "answered", "settled"]
    assert [step for step in steps if step != "held"] == in_order
    assert (told["state"], told["tenant"], told["attempts"]) == ("completed", "acme", 1)
    assert told.get("missing", []) == []
    price = told["price"]
    assert price["cost_units"] == pytest.approx(price["input_units"] + price["output_units"], abs=0.002)
    assert all(event["after_s"] >= 0 for event in told["events"][1:])
    assert {one["id"] for one in told["batched_with"]} & {f"side-{n}" for n in range(12)}
    text = command(site, "side-1").stdout
    assert "side-1: completed" in text
    assert "in the engine with" in text


def test_waits_refusals_and_ends_say_why(site):
    waited, steps = explained(site, "slow-2")
    assert {"held", "deferred"} & set(steps), steps
    assert "budget_tenant" in next(e["what"] for e in waited["events"] if e["step"] in ("held", "deferred"))
    rejected, steps = explained(site, "too-much")
    assert rejected["state"].startswith("rejected_")
    assert steps[:3] == ["received", "priced", "rejected"]
    refused, steps = explained(site, "no-model")
    assert (refused["reason"], sorted(steps)) == ("unknown_model", ["answered", "received", "refused"])
    cancelled, steps = explained(site, "long")
    assert (cancelled["state"], "cancel_ordered" in steps, "cancelled" in steps) == ("cancelled", True, True)


def test_one_who_asks_again_and_one_whom_nobody_can_read_are_told_too(site):
    again, steps = explained(site, "side-0")
    assert steps.count("received") == 2
    assert "repeated" in steps
    origin = site.broken
    broken, steps = explained(site, codec.fallback_id(origin))
    assert broken["state"] == "rejected_invalid"
    assert "dead_lettered" in steps
    assert broken.get("missing", []) == again.get("missing", []) == []


def test_an_id_that_nobody_knows_is_said_to_be_unknown(site, monkeypatch, capsys):
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["rampmeter", "explain", "never-sent"])
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    assert "no topic knows the id 'never-sent'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        ("doctor",), ("doctor", "--diagnose"), ("lag",), ("audit",), ("dlq", "ls"), ("dlq", "show", "0"),
        ("limits", "show"), ("topics", "plan"), ("explain", "side-2"),
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_no_command_prints_a_prompt(site, args, form):
    done = CliRunner().invoke(cli.app, [*args, *form], env=site.env)
    assert done.exit_code in (0, 1), (done.output, done.exception)
    assert done.output
    assert PROMPT not in done.output


def test_one_reading_explains_every_id_as_one_by_one(site):
    whole = {found.id: found for found in gathering.gather(site.settings, 0.0).timelines()}
    assert len(whole) == 18
    assert {name: found.missing for name, found in whole.items() if found.missing or found.state == "open"} == {}
    for name in ("side-3", "slow-1", "long"):
        alone = gathering.gather(site.settings, 0.0, name).timeline(name)
        assert alone == whole[name]
