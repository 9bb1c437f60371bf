"""A cut of `make chaos` for every day: some of each kind of fault, with short outages and few kills."""

import json
import random
import sys
from dataclasses import asdict

import pytest

from tests.benchmarks.ground import Ground
from tests.chaos import __main__ as chaos
from tests.chaos import expiry, faults, oracle, runner

CUT = ("freeze_consumer_with_unsent_answers", "flush_redis", "cut_network")


@pytest.mark.timeout(900)
def test_nothing_is_lost_doubled_or_charged_wrongly_whatever_dies_stops_or_is_cut_off(tmp_path):
    plan = runner.Plan(kills=3, rounds=1, outage_s=6.0, per_s=30.0, only=CUT)
    found = runner.play(plan, tmp_path, lambda text: sys.stdout.write(f"{text}\n"))
    print(json.dumps(asdict(found)))
    # How long a commit may stand is for `make chaos`: here other tests run beside it.
    assert [sentence for sentence in found.wrong if not sentence.startswith("stall")] == []
    assert found.max_stall_s is not None
    assert found.kills == 3
    assert all(found.faults[name] == 1 for name in CUT)
    assert found.sent > 500
    assert {"completed", "rejected_budget"} <= found.outcomes.keys()
    assert min(found.settled_units.values()) > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_table_is_as_small_as_before_after_five_restarts_past_the_expiry_of_its_windows(
    broker, redis_server, tmp_path
):
    ground = Ground(broker.bootstrap_servers, redis_server.url, broker.pid, redis_server.pid, tmp_path, lambda _: None)
    with ground.site() as site:
        before, after = expiry.rows_after_restarts(site, tmp_path)
    assert min(before) > 0, "nothing was there to expire"
    assert after == [0.0] * expiry.RESTARTS


def test_one_seed_gives_one_order_of_faults_and_all_of_them():
    plan = runner.Plan(kills=5, rounds=2)
    scripts = [plan.script(random.Random(seed)) for seed in (1, 1, 2)]
    assert scripts[0] == scripts[1] != scripts[2]
    assert all(scripts[0].count(fault) == 2 for fault in faults.OTHERS)
    assert sum(fault in faults.KILLS for fault in scripts[0]) == 5


@pytest.mark.parametrize(("lost", "status"), [(0, 0), (2, 1)])
def test_the_command_ends_with_one_line_of_json(monkeypatch, capsys, lost, status):
    wrong = [f"lost: {lost}"] if lost else []
    found = oracle.Found(kills=3, sent=100, lost=lost, max_stall_s=4.2, wrong=wrong)
    monkeypatch.setattr(runner, "play", lambda *_: found)
    monkeypatch.setattr("sys.argv", ["chaos", "--kills", "3", "--json"])
    assert chaos.main() == status
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    shown = json.loads(said)
    assert {name: shown[name] for name in ("kills", "sent", "lost", "duplicates", "max_stall_s")} == {
        "kills": 3, "sent": 100, "lost": lost, "duplicates": 0, "max_stall_s": 4.2,
    }  # fmt: skip
    assert shown["wrong"] == wrong
