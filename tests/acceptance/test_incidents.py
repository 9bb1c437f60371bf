"""Every incident makes its alert fire in a real Prometheus, and the runbook's way out clears it.

Windows and waits of the rules are `SCALE` times shorter than in production, but 20 and 6 s at least; thresholds are the
same.  Some incidents are short enough for the rules as they are.
"""

import json
import re
import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from docker import alerts
from rampmeter import kin
from rampmeter.chaos.incidents import INCIDENTS
from tests.support import command, started
from tests.support.prometheus import Prometheus, needs_prometheus, scaled
from tests.support.streams_worker import wait_until
from topics import process

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.timeout(900)]
SCALE = 240
FIRES_S, CLEARS_S = 300.0, 300.0
ENV = {
    # One consumer is the largest fleet, so that a flood of this machine's size is one.
    "RAMPMETER_AUTOSCALER__POOLS": json.dumps({"default": {"min_replicas": 1, "max_replicas": 1}}),
    "RAMPMETER_STACK__READY_TIMEOUT_S": "280",
    # How long a class may wait is the threshold of starvation.
    "RAMPMETER_STREAMS__MAX_WAIT_S": json.dumps(dict.fromkeys(("high", "medium", "low"), 60)),
}
AS_THEY_ARE = ("queue-long", "redis-degraded", "starvation", "scaler-blind", "gpu-hot")
RUNBOOK = (Path(__file__).parents[2] / "RUNBOOK.md").read_text()


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    with command.Up("--no-llama", cwd=tmp_path_factory.mktemp("incidents"), env=ENV, ready_s=300) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(up):
    with Prometheus(up.cwd, rules=scaled(alerts.rules(), SCALE)) as running:
        wait_until(lambda: running.query("rampmeter_gpu_inflight_requests"), 60, up.said)
        yield running


@pytest.fixture(scope="module")
def unscaled(up, tmp_path_factory):
    with Prometheus(up.cwd, rules=alerts.rules(), home=tmp_path_factory.mktemp("unscaled")) as running:
        wait_until(lambda: running.query("rampmeter_gpu_inflight_requests"), 60, up.said)
        yield running


@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_makes_its_alert_fire_and_its_way_out_clears_it(name, up, prometheus):
    go_through(name, up, prometheus)


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_it_does_so_by_the_rules_as_they_are(name, up, unscaled):
    go_through(name, up, unscaled)


def go_through(name, up, prometheus):
    """The whole incident."""
    incident = INCIDENTS[name]

    def fires():
        return incident.alert in prometheus.firing()

    wait_until(lambda: not fires(), CLEARS_S, lambda: "it fires before")
    chaos = start(up, name)
    began_s = time.monotonic()
    try:
        wait_until(fires, FIRES_S, lambda: f"{said(up, name)}\n{prometheus.query('ALERTS')}")
        fired_s = time.monotonic() - began_s
        looked = up.run(*first_command(incident.alert), timeout_s=120)
        assert looked.returncode in {0, process.EXIT_FINDING, process.EXIT_UNAVAILABLE}, looked.stderr
        assert "Traceback" not in looked.stderr
        began_s = time.monotonic()
        if incident.way_out is None:
            stop(chaos)
        else:
            left = up.run(*shlex.split(way_out(up, name))[1:])
            assert left.returncode == 0, left.stderr
        wait_until(lambda: not fires(), CLEARS_S, lambda: f"{said(up, name)}\n{prometheus.query('ALERTS')}")
        cleared_s = time.monotonic() - began_s
        assert stop(chaos) == 0, said(up, name)
    finally:
        with suppress(ProcessLookupError):
            stop(chaos)
    (line,) = (up.cwd / f"{name}.json").read_text().splitlines()
    ran = json.loads(line)
    assert (ran["incident"], ran["alert"]) == (name, incident.alert)
    assert stopped(up) == [], "something stands still that did not before"
    sys.stderr.write(f"\n{incident.alert}: fired after {fired_s:.0f} s, cleared {cleared_s:.0f} s after its way out\n")


def start(up, name):
    """`rampmeter chaos` in the background."""
    with (up.cwd / f"{name}.json").open("wb") as out, (up.cwd / f"{name}.log").open("wb") as log:
        return started.popen(
            [command.RAMPMETER, "chaos", name, "--for", "900", "--json"],
            cwd=up.cwd, env=command.environment(ENV), stdout=out, stderr=log,
        )  # fmt: skip


def stop(chaos):
    """As Ctrl-C does; the exit status."""
    if chaos.poll() is None:
        chaos.send_signal(signal.SIGINT)
    return chaos.wait(60)


def said(up, name):
    return (up.cwd / f"{name}.log").read_text()


def way_out(up, name):
    """The command that the incident names."""
    return re.search(r"way out: (.+)", said(up, name))[1]


def first_command(alert):
    """Of the alert's section in the runbook."""
    return shlex.split(re.search(rf"## {alert}\n.*?```console\nrampmeter (.+?)\n", RUNBOOK, flags=re.DOTALL)[1])


def stopped(up):
    """Processes of the stack that stand still."""
    pids = [one.pid for one in kin.descendants(up.process.pid)]
    return [pid for pid in pids if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"]
