"""Processes under measurement: start, CPU seconds and memory from /proc, stop."""

import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from topics.local_process import HOST, LocalProcess
from topics.settings import ENV_PREFIX

ROOT = Path(__file__).parents[2]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
READY_LIMIT_S = 60.0
STOP_GRACE_S = 20.0
TAIL_CHARACTERS = 2000
KIB = 1024


class Child:
    """One Python module as a child that ends with this process."""

    def __init__(self, name, module, env, log_dir, *arguments):
        self.name = name
        self._log = log_dir / f"{name}.log"
        self._port = _free_port()
        self._process = LocalProcess(
            (sys.executable, "-m", module, *arguments),
            self._log,
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)},
                "PYTHONPATH": str(ROOT),
                **env,
                f"{ENV_PREFIX}STATUS_PORT": str(self._port),
            },
        )

    @property
    def pid(self):
        return self._process.pid

    def wait_ready(self):
        """Wait for /readyz."""
        end_s = time.monotonic() + READY_LIMIT_S
        while not self._says_ready():
            self.check()
            if time.monotonic() > end_s:
                raise RuntimeError(f"{self.name} is not ready: {self._tail()}")
            time.sleep(0.1)

    def check(self):
        """Raise when it has ended."""
        if not self._process.is_running():
            raise RuntimeError(f"{self.name} has ended: {self._tail()}")

    def kill(self):
        """As the kernel does when memory runs out."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.stop(STOP_GRACE_S)

    def stop(self):
        self._process.stop(STOP_GRACE_S)

    def _tail(self):
        return self._log.read_text("utf-8", "replace")[-TAIL_CHARACTERS:]

    def _says_ready(self):
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}/readyz", timeout=1.0):
                return True
        except OSError:  # also an answer of 503
            return False


def cpu_s(pid):
    """CPU seconds of a process so far, all threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def peak_bytes(pid):
    """Largest resident size of a process so far; pages that it shares with others count in full."""
    return _field_bytes(Path(f"/proc/{pid}/status"), "VmHWM:")


def resident_bytes(pid):
    """Resident size now; pages that it shares with others count in full."""
    return _field_bytes(Path(f"/proc/{pid}/status"), "VmRSS:")


def pss_bytes(pid):
    """Resident size now, pages shared with others divided among them: these may be added up."""
    return _field_bytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def _field_bytes(path, name):
    for line in path.read_text("utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * KIB
    raise RuntimeError(f"no {name} in {path}")


def _free_port():
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]
