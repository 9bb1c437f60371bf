"""Incidents touch nothing but a stack of this user's `rampmeter up`, and undo what they did."""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from docker import alerts
from rampmeter import kin, state, targets
from rampmeter.chaos import acts, site
from rampmeter.chaos.incidents import INCIDENTS
from rampmeter.chaos.scene import Kind
from rampmeter.chaos.site import Site
from rampmeter.settings import StackSettings
from tests.support import started
from tests.support.clock import FakeClock
from tests.support.streams_worker import wait_until
from topics.errors import ConfigError
from topics.settings import load

ALERTS = [alert["alert"] for alert in yaml.safe_load(alerts.SOURCE.read_text())["alerts"]]
RUNBOOK = (Path(__file__).parents[3] / "RUNBOOK.md").read_text()


def test_every_alert_has_an_incident():
    assert sorted(incident.alert for incident in INCIDENTS.values()) == sorted(ALERTS)


@pytest.mark.parametrize("name", INCIDENTS)
def test_a_way_out_is_one_of_the_alerts_section_of_the_runbook(name):
    incident = INCIDENTS[name]
    section = re.search(rf"^## {incident.alert}\n(.*?)(?=^## |\Z)", RUNBOOK, flags=re.MULTILINE | re.DOTALL)[1]
    commands = [line for line in section.splitlines() if line.startswith("rampmeter ")]
    assert incident.way_out is None or incident.way_out.format(tenant="my-team") in commands


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("RAMPMETER_STACK__DATA_DIR", str(tmp_path))
    return tmp_path


def leave_note(data_dir, pid):
    local = load(StackSettings, kafka={"bootstrap.servers": "127.0.0.1:1"}, redis={"url": "redis://127.0.0.1:2/0"})
    state.write(data_dir, local, {})
    path = data_dir / state.FILE_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": pid}))


def test_without_a_stack_nothing_is_touched(data_dir):
    with pytest.raises(ConfigError, match="no stack that runs"):
        site.find()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    leave_note(data_dir, ended.pid)
    with pytest.raises(ConfigError, match="no stack that runs"):
        site.find()


@pytest.mark.parametrize("variable", ["RAMPMETER_KAFKA__BOOTSTRAP_SERVERS", "RAMPMETER_REDIS__URL"])
def test_a_kafka_or_redis_of_the_users_own_is_not_touched(data_dir, monkeypatch, variable):
    leave_note(data_dir, os.getpid())
    monkeypatch.setenv(variable, "redis://elsewhere:6379/0" if "REDIS" in variable else "kafka-1:9092")
    with pytest.raises(ConfigError, match="of your own"):
        site.find()


def test_another_process_that_has_the_number_of_a_former_stack_is_not_touched(data_dir):
    leave_note(data_dir, os.getpid())
    with pytest.raises(ConfigError, match="no `rampmeter up` of this user"):
        site.find()


def test_a_stack_whose_servers_are_not_its_own_is_not_touched(data_dir, tmp_path):
    program = tmp_path / "rampmeter"
    program.write_text("import time\ntime.sleep(60)\n")
    posing = started.popen([sys.executable, str(program), "up"])
    leave_note(data_dir, posing.pid)
    wait_until(lambda: "up" in kin.argv(posing.pid), 10)
    with pytest.raises(ConfigError, match="is not one that `rampmeter up` started"):
        site.find()


@pytest.fixture
def child():
    made = started.popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield made
    made.kill()
    made.wait()


def scene(*pids):
    clock = FakeClock()
    made = SimpleNamespace(clock=clock, sent=0, cancelled=[], site=SimpleNamespace(pids=lambda _: set(pids)))
    made.send = lambda _: setattr(made, "sent", made.sent + 1)
    made.cancel = made.cancelled.append
    return made


def is_still(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_what_stands_still_goes_on_when_it_is_over(child):
    act = acts.standing_still("gpu_consumers")(scene(child.pid))
    next(act)
    wait_until(lambda: is_still(child.pid), 5)
    act.close()
    wait_until(lambda: not is_still(child.pid), 5)


def test_a_fault_of_one_act_undoes_the_others(child):
    def broken(_):
        yield
        raise RuntimeError

    act = acts.together(acts.standing_still("gpu_consumers"), broken)(scene(child.pid))
    next(act)
    wait_until(lambda: is_still(child.pid), 5)
    with pytest.raises(RuntimeError):
        next(act)
    wait_until(lambda: not is_still(child.pid), 5)


def test_stuttering_stands_still_for_less_than_a_session(child):
    made = scene(child.pid)
    act = acts.stuttering("gpu_consumers")(made)
    for wanted in ([True] * 4 + [False] * 2) * 2:
        next(act)
        wait_until(lambda wanted=wanted: is_still(child.pid) is wanted, 5)
        made.clock.advance(1)
    act.close()


def test_a_worker_wakes_up_with_work_that_needs_what_stands_still_by_then(child):
    made = scene()
    worker = started.popen([sys.executable, "-c", "import time; time.sleep(60)"])
    made.site.pids = lambda name: {worker.pid if name == "streams" else child.pid}
    act = acts.cutting_off("streams", "redis")(made)
    for _ in range(2):
        next(act)
        wait_until(lambda: is_still(worker.pid) and not is_still(child.pid), 5)
        made.clock.advance(1)
    next(act)
    wait_until(lambda: is_still(child.pid) and not is_still(worker.pid), 5)
    act.close()
    wait_until(lambda: not is_still(child.pid), 5)


def test_a_drill_says_that_it_is_one_and_is_gone_when_it_is_over(tmp_path):
    act = acts.drill("gpu_temperature_celsius", 90.0)(SimpleNamespace(site=Site(None, 1, tmp_path)))
    next(act)
    (told,) = json.loads((tmp_path / targets.DRILL_FILE_NAME).read_text())
    assert told["labels"] == {"drill": "rampmeter chaos"}
    (page,) = told["targets"]
    with urllib.request.urlopen(f"http://{page}/metrics", timeout=10) as shown:
        assert b"rampmeter_gpu_gpu_temperature_celsius 90.0\n" in shown.read()
    act.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{page}/metrics", timeout=10)


def test_requests_come_at_their_rate():
    made = scene()
    act = acts.sending(Kind(1), per_s=4)(made)
    counts = []
    for _ in range(3):
        next(act)
        counts.append(made.sent)
        made.clock.advance(1)
    assert counts == [1, 5, 9]


def test_a_pile_has_an_end_and_is_taken_away():
    made = scene()
    act = acts.piling(Kind(1), per_s=2, most=5, cancels=True)(made)
    for _ in range(9):
        next(act)
        made.clock.advance(1)
    assert made.sent == 5
    act.close()
    assert made.cancelled == [1, 2, 3, 4, 5]


def test_a_process_is_known_by_what_it_was_started_as():
    env = {"RAMPMETER_STATUS_PORT": "1234", "PATH": os.environ["PATH"]}
    made = started.popen([sys.executable, "-c", "import time; time.sleep(60)", "-m", "streams"], env=env)

    def found():
        return next((one for one in kin.descendants(os.getpid()) if one.pid == made.pid and one.env), None)

    seen = wait_until(found, 10)
    assert (seen.name, seen.status_port) == ("", 0), "it is none of ours, whatever it says"
    assert seen.env == {"RAMPMETER_STATUS_PORT": "1234"}
    assert kin.owner(made.pid) == os.getuid()
    made.kill()
    made.wait()
    assert kin.owner(made.pid) is None
    assert kin.argv(made.pid) == []


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("/usr/bin/python -m streams", "streams"),
        ("/usr/bin/python -m gpu_consumers", "gpu_consumers"),
        ("/usr/bin/python -m http.server", ""),
        ("/opt/jdk/bin/java -Xmx1g kafka.Kafka", "kafka"),
        ("'redis-server 127.0.0.1:6379'", "redis"),
        ("/x/valkey-server --port 1", "redis"),
        ("", ""),
    ],
)
def test_names_follow_from_command_lines(words, name):
    assert kin._name(shlex.split(words)) == name
