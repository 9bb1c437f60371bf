"""`top` on a real worker, a real broker and real consumers, as JSON, on a screen and on a terminal."""

import json
import time

import pytest

from rampmeter import positions
from rampmeter.top import reader as reading
from rampmeter.top.app import Top
from rampmeter.top.reader import Reader
from rampmeter.top.tables import Kind
from tests.support.command import one_line_of_json, run
from tests.support.gpu import Consumer
from tests.support.streams_worker import Site, StreamsWorker, chat, send, wait_until
from tests.support.terminal import Terminal
from topics.clock import SystemClock
from topics.records import Priority

ENOUGH = {"refill_units_per_s": 1e6, "warm_up_s": 0}
COMMAND = "from rampmeter import cli; cli.main()"


@pytest.fixture(scope="module")
def site(broker, redis_server, tmp_path_factory):
    """Two consumers, of which one was killed; work that runs for long, and a tenant that is refused."""
    folder = tmp_path_factory.mktemp("top")
    made = Site(
        broker, redis_server.url, 7, tenant_budget=ENOUGH, global_budget=ENOUGH, pool_budget=ENOUGH,
        class_budgets=dict.fromkeys(Priority, ENOUGH),
        tenant_budgets={"poor": {"refill_units_per_s": 1.0, "burst_s": 10.0, "warm_up_s": 0}},
    )  # fmt: skip
    worker = StreamsWorker(made.env, folder / "worker.log").start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**made.env, "RAMPMETER_GPU__ENGINE": "simulated"}.items():
            if name != "RAMPMETER_STREAMS":
                patch.setenv(name, value)
        killed, consumer = (Consumer(folder / f"{name}.log", consumer_id=name) for name in ("g1", "g2"))
        killed.wait_ready()
        consumer.wait_ready()
    killed.kill()
    try:
        yield made
    finally:
        consumer.kill()
        worker.stop()
        made.close()


def ask(site, tenant, count, **body):
    headers = [("rampmeter_tenant", tenant.encode())]
    send(site.settings, "requests.high.short", [(chat(**body), tenant.encode(), headers, 0)] * count)


def command_env(site):
    return {name: value for name, value in site.env.items() if name != "RAMPMETER_STREAMS"}


def test_the_whole_of_it_as_json(site, tmp_path):
    def is_whole(found):
        """Whether both readings met all: the machine may be too busy for one."""
        return (
            not found["unread"]
            and {one["tenant"] for one in found["tenants"]} >= {"acme", "poor"}
            and {one["consumer"]: one["state"] for one in found["consumers"]}.items()
            >= {("g1", "silent"), ("g2", "ready")}
            and all(one["arrived_per_s"] is not None for one in found["lanes"])
            and any(one["lag_records"] for one in found["lanes"])
        )

    def read():
        ask(site, "acme", 5, max_tokens=4000, simulated_output_tokens=3000)
        ask(site, "poor", 3, max_tokens=250)
        done = run("top", "--json", cwd=tmp_path, env=command_env(site))
        found = one_line_of_json(done)
        assert done.returncode == (69 if found["unread"] else 0), done.stderr
        return found if is_whole(found) else None

    found = wait_until(read, 60)
    assert len(found["lanes"]) == 16
    assert {one["pool"]: one["ready"] for one in found["pools"]} == {"default": 1, "cpu": 0}
    assert sum(one["lag_records"] for one in found["lanes"]) == sum(one["lag_records"] for one in found["pools"])
    tenants = {one["tenant"]: one for one in found["tenants"]}
    assert tenants["poor"]["refused_ratio"] == 1.0
    assert tenants["acme"]["refused_ratio"] == 0.0
    assert tenants["acme"]["asked_ratio"] > tenants["poor"]["asked_ratio"] > 0
    (live,) = [one for one in found["consumers"] if one["consumer"] == "g2"]
    assert (live["pool"], live["state"], live["gpu_temperature_c"]) == ("default", "ready", None)


@pytest.mark.asyncio
async def test_the_screen_shows_what_is_read(site):
    ask(site, "acme", 3, max_tokens=250, simulated_output_tokens=240)

    def follow(top):
        with Reader(site.settings, SystemClock(), 5) as reader:
            while not top.over.is_set():
                top.tell(reader.read())
                top.over.wait(0.2)

    top = Top(follow, SystemClock(), "here")
    async with top.run_test(size=(140, 40)) as pilot:
        end_s = time.monotonic() + 60
        while top.shown is None or "acme" not in {one.tenant for one in top.shown.tenants or ()}:
            assert time.monotonic() < end_s, top.shown
            await pilot.pause(0.1)
        assert top._panels[Kind.CLASSES].table.row_count == 16
        assert top._panels[Kind.CONSUMERS].table.row_count == 2


def test_it_runs_on_a_terminal_and_ends_with_q(site, tmp_path):
    terminal = Terminal(COMMAND, "top", "--every", "0.3", cwd=tmp_path, env=command_env(site))
    terminal.until("CONSUMERS")
    terminal.until("g2")
    terminal.press("q")
    assert terminal.end() == 0


def test_nobody_waits_for_a_broker_that_does_not_answer_to_leave(tmp_path):
    terminal = Terminal(COMMAND, "top", cwd=tmp_path, env={"RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    terminal.until("reading")
    terminal.press("q")
    assert terminal.end() == 0
    assert "cannot read" not in terminal.said, "the first reading was still going on"


def test_who_has_no_textual_is_told_how_to_get_it(tmp_path):
    code = f"import sys; sys.modules['textual'] = None; {COMMAND}"
    terminal = Terminal(code, "top", cwd=tmp_path)
    assert terminal.end() == 78
    assert "pip install 'rampmeter[tui]'" in terminal.said
    assert "Traceback" not in terminal.said


def test_where_no_broker_is_all_is_unknown_and_said_why(site, monkeypatch):
    monkeypatch.setattr(reading, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(positions, "TIMEOUT_S", 0.5)
    away = site.settings.model_copy(update={"kafka": {"bootstrap.servers": "127.0.0.1:1"}})
    with Reader(away, SystemClock(), 5) as reader:
        found = reader.read()
    assert [one.what for one in found.unread] == [
        "lag of pool default", "lag of pool cpu", "telemetry", "decisions",
    ]  # fmt: skip
    assert all(one.why and one.last_s is None for one in found.unread)
    assert (found.tenants, found.consumers) == (None, None)
    assert {one.lag_records for one in found.lanes} == {one.ready for one in found.pools} == {None}


def test_topics_that_are_not_there_are_named_and_the_rest_is_read(stack_env, tmp_path):
    done = run("top", "--json", cwd=tmp_path, env=stack_env)
    assert done.returncode == 69
    found = json.loads(done.stdout)
    assert {one["what"] for one in found["unread"]} >= {"telemetry", "decisions"}
    assert "rampmeter topics apply" in found["unread"][-1]["why"]
