"""Children of the process target: they start, drain, come back after a crash, and end with their parent."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from autoscaler.target import Unstarted
from autoscaler.targets.process import ProcessLimits, ProcessTarget
from topics.clock import SystemClock
from topics.local_process import LocalProcess

WAITS = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True); "
SLEEPER = WAITS + "time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
TELLER = WAITS + "import os; print(*(os.environ[n] for n in sorted(os.environ)), flush=True); time.sleep(60)"


def eventually(condition, within_s=10.0):
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Host:
    """A target with one pool, and what it said."""

    def __init__(self, log_dir, program, grace_s=5.0, backoff_s=0.05):
        self.exits, self.log_dir = [], log_dir
        self.target = ProcessTarget(
            {"default": {"PATH": os.environ["PATH"], "EXTRA": "extra-value"}},
            ProcessLimits(log_dir, grace_s, backoff_s, backoff_s * 4),
            SystemClock(),
            lambda pool, how: self.exits.append((pool, how)),
            command=(sys.executable, "-c", program),
        )

    def scale(self, replicas):
        self.target.scale("default", replicas)

    def children(self):
        return list(self.target._crews["default"].running)

    def pids(self):
        return [child.process.pid for child in self.children()]

    def said(self):
        return {path.stem: path.read_text() for path in self.log_dir.glob("*.log")}

    def wait_up(self, count):
        assert eventually(lambda: sum("up" in text for text in self.said().values()) >= count)


@pytest.fixture
def host(tmp_path):
    hosts = []

    def make(program=SLEEPER, **options):
        hosts.append(Host(tmp_path / "logs", program, **options))
        return hosts[-1]

    yield make
    for each in hosts:
        each.target.close()


def test_children_start_with_a_pool_an_id_a_port_and_a_log_of_their_own(host):
    one = host(TELLER)
    one.scale(2)
    one.wait_up(2)
    assert eventually(lambda: all("extra-value" in text for text in one.said().values()))
    for name, text in one.said().items():
        assert name.startswith("default-")
        assert name in text
        assert "default" in text
    ports = [text.split()[-1] for text in one.said().values()]
    assert len(set(ports)) == 2


def test_the_youngest_is_drained_and_ends_by_itself(host):
    one = host()
    one.scale(3)
    one.wait_up(3)
    oldest, *_, youngest = one.pids()
    one.scale(2)
    assert one.target.replicas("default") == 2
    assert eventually(lambda: not is_alive(youngest))
    assert is_alive(oldest)
    one.scale(2)
    assert one.exits == [("default", "drained")]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux needs a thread that waits for the child")
def test_the_end_of_a_child_is_known_as_soon_as_it_has_ended(tmp_path):
    for _ in range(20):
        child = LocalProcess(("/bin/true",), tmp_path / "log")
        while is_alive(child.pid):
            pass
        assert (child.is_running(), child.exit_code) == (False, 0)


def test_a_crashed_child_is_replaced_after_a_pause_under_a_new_id(host):
    one = host(backoff_s=0.3)
    one.scale(1)
    one.wait_up(1)
    (first,) = one.children()
    os.kill(first.process.pid, signal.SIGKILL)
    assert eventually(lambda: not first.process.is_running())
    one.scale(1)
    assert one.children() == []
    assert one.target.unstarted("default") == Unstarted(1, 0)
    assert one.exits == [("default", "crashed")]
    assert eventually(lambda: one.scale(1) or one.children())
    assert one.children()[0].name != first.name


def test_crashes_in_a_row_are_spaced_out(host):
    one = host("raise SystemExit(3)", backoff_s=0.2)
    began_s = time.monotonic()
    assert eventually(lambda: one.scale(1) or len(one.exits) >= 3)
    assert time.monotonic() - began_s >= 0.2 + 0.4


def test_a_child_that_will_not_drain_is_killed_after_the_grace(host):
    one = host(STUBBORN, grace_s=0.3)
    one.scale(1)
    one.wait_up(1)
    (pid,) = one.pids()
    one.scale(0)
    assert is_alive(pid)
    assert eventually(lambda: one.scale(0) or one.exits == [("default", "killed")])
    assert not is_alive(pid)


def test_closing_drains_all_children_at_once(host):
    one = host()
    one.scale(3)
    one.wait_up(3)
    pids = one.pids()
    began_s = time.monotonic()
    one.target.close()
    assert time.monotonic() - began_s < 3.0
    assert not any(is_alive(pid) for pid in pids)
    assert one.exits == [("default", "drained")] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_children_end_when_the_parent_is_killed(tmp_path):
    program = textwrap.dedent(
        f"""
        import os, pathlib, sys, time
        from autoscaler.targets.process import ProcessLimits, ProcessTarget
        from topics.clock import SystemClock
        target = ProcessTarget(
            {{"default": dict(os.environ)}},
            ProcessLimits(pathlib.Path({str(tmp_path)!r}), 5.0, 1.0, 1.0),
            SystemClock(), lambda *_: None, command=(sys.executable, "-c", {SLEEPER!r}))
        target.scale("default", 2)
        print("pids", *(child.process.pid for child in target._crews["default"].running), flush=True)
        time.sleep(60)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    line = next(line for line in parent.stdout if line.startswith(b"pids"))  # the log comes along
    pids = [int(word) for word in line.split()[1:]]
    assert eventually(lambda: len([p for p in tmp_path.glob("*.log") if "up" in p.read_text()]) == 2)
    parent.kill()
    parent.communicate()
    assert eventually(lambda: not any(is_alive(pid) for pid in pids))
