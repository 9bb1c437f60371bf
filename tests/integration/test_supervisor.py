import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from rampmeter.supervisor import Program, Supervisor
from topics.clock import SystemClock
from topics.errors import ConfigError, DependencyDown

SERVER = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def said():
    return []


@pytest.fixture
def supervisor(tmp_path, said):
    made = Supervisor(tmp_path, SystemClock(), restart_max_s=1.0, say=said.append)
    yield made
    made.stop(timeout_s=5)


def script(text, port):
    return Program("child", (sys.executable, "-c", text, str(port)), {}, port)


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_killed_child_is_started_again_and_told(supervisor, said, port):
    supervisor.start([script(SERVER, port)])
    supervisor.wait_ready(10)
    first = supervisor.pid("child")
    supervisor.kill("child")
    until(lambda: supervisor.pid("child") != first)
    supervisor.wait_ready(10)
    assert supervisor.crashes() == 1
    assert "child ended with status -9" in said[0]


def test_stopped_child_stays_stopped(supervisor, port):
    supervisor.start([script(SERVER, port)])
    supervisor.wait_ready(10)
    pid = supervisor.pid("child")
    supervisor.stop()
    assert not is_alive(pid)
    assert supervisor.crashes() == 0


def test_death_while_starting_shows_the_end_of_the_log(supervisor, port):
    supervisor.start([script("print('about to fail', flush=True); raise SystemExit(3)", port)])
    with pytest.raises(DependencyDown, match=r"(?s)child ended with status 3.*about to fail"):
        supervisor.wait_ready(10)


def test_configuration_errors_of_a_child_are_ours(supervisor, port):
    supervisor.start([script("import sys; sys.stderr.write('configuration: X is wrong\\n'); sys.exit(78)", port)])
    with pytest.raises(ConfigError) as caught:
        supervisor.wait_ready(10)
    assert caught.value.problems == ["child: X is wrong"]


def test_child_that_is_never_ready_is_named(supervisor, port):
    supervisor.start([script("import time; time.sleep(60)", port)])
    with pytest.raises(DependencyDown, match=r"not ready within 0\.3 s: child: does not answer yet"):
        supervisor.wait_ready(0.3)


def test_child_that_ignores_the_request_to_end_is_killed(supervisor, port):
    supervisor.start([script("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)", port)])
    pid = supervisor.pid("child")
    time.sleep(0.3)
    supervisor.stop(timeout_s=0.2)
    assert not is_alive(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals exist on Linux only")
def test_children_end_with_a_killed_parent(tmp_path, port):
    parent = f"""
import sys, time
from pathlib import Path
from rampmeter.supervisor import Program, Supervisor
from topics.clock import SystemClock
made = Supervisor(Path({str(tmp_path)!r}), SystemClock(), 1.0, print)
made.start([Program("child", (sys.executable, "-c", {SERVER!r}, "{port}"), {{}}, {port})])
made.wait_ready(10)
print(made.pid("child"), flush=True)
time.sleep(60)
"""
    running = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE)
    child = int(running.stdout.readline())
    running.send_signal(signal.SIGKILL)
    running.wait()
    until(lambda: not is_alive(child))
