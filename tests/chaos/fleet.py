"""Processes under test: started, killed, frozen, asked to end, and started again when they end by themselves."""

import os
import signal
import sys
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path

from tests.support.streams_worker import free_port, wait_until
from topics.local_process import HOST, LocalProcess
from topics.settings import ENV_PREFIX

ROOT = Path(__file__).parents[2]
READY_S = 300.0
TAIL_CHARACTERS = 3000


class Process:
    """One of our modules as a child that ends with this process."""

    def __init__(self, name, module, env, log_path):
        self.name, self.log_path, self._port = name, log_path, free_port()
        outside = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}
        own = {f"{ENV_PREFIX}STATUS_PORT": str(self._port), "PYTHONPATH": str(ROOT)}
        self._child = LocalProcess((sys.executable, "-m", module), log_path, env={**outside, **env, **own})

    @property
    def is_running(self):
        return self._child.is_running()

    @property
    def exit_code(self):
        return self._child.exit_code

    def is_ready(self):
        with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{self._port}/readyz", timeout=2.0):
            return True
        return False

    def kill(self):
        self._child.kill()
        self._child.stop(0.0)

    def freeze(self):
        os.kill(self._child.pid, signal.SIGSTOP)

    def thaw(self):
        os.kill(self._child.pid, signal.SIGCONT)

    def end(self, limit_s):
        """Ask it to end; what is wrong with how it did, or None."""
        if not self._child.stop(limit_s):
            return f"{self.name} did not end within {limit_s:g} s of SIGTERM: {self.tail()}"
        has_begun = self.exit_code != -signal.SIGTERM or self.tail()  # else it was an interpreter about to load us
        if self.exit_code != 0 and has_begun:
            return f"{self.name} ended with {self.exit_code} after SIGTERM: {self.tail()}"
        return None

    def tail(self):
        return self.log_path.read_text("utf-8", "replace")[-TAIL_CHARACTERS:]


class Fleet:
    """All processes of one module.

    Invariant: between `tend` calls only those that ended by themselves are missing, and `ended` counts these by status.
    """

    def __init__(self, module, env, ending_s, log_dir, say):
        """`ending_s` is how long one may take to end after SIGTERM."""
        self._module, self._env, self._ending_s, self._log_dir, self._say = module, env, ending_s, log_dir, say
        self._numbers = count(1)
        self.all, self.ended, self.complaints = [], Counter(), []

    def start(self, number=1, **env):
        """Start that many more; the last."""
        for _ in range(number):
            name = f"{self._module}-{next(self._numbers)}"
            self.all.append(Process(name, self._module, {**self._env, **env}, self._log_dir / f"{name}.log"))
        return self.all[-1]

    def kill(self, process):
        """Kill one and start another."""
        self.all.remove(process)
        process.kill()
        self.start()

    def end(self, process):
        """Ask one to end, and wait for it."""
        self.all.remove(process)
        complaint = process.end(self._ending_s)
        if complaint is not None:
            self.complaints.append(complaint)

    def roll(self):
        """Replace each by a new one, one after another, as a rollout does: the new one is ready first."""
        for process in list(self.all):
            self.start()
            self.wait_ready()
            if process in self.all:
                self.end(process)

    def resize(self, size):
        """Go to that many."""
        while len(self.all) > size:
            self.end(self.all[-1])
        self.start(size - len(self.all))
        self.wait_ready()

    def tend(self):
        """As a supervisor does: start those again that ended by themselves."""
        for process in [process for process in self.all if not process.is_running]:
            self.ended[f"{self._module}:{process.exit_code}"] += 1
            self._say(f"{process.name} ended by itself with {process.exit_code}: {process.tail()}")
            self.all.remove(process)
            self.start()

    def wait_ready(self):
        """Wait until all are ready."""

        def are_ready():
            self.tend()
            return all(process.is_ready() for process in self.all)

        wait_until(are_ready, READY_S, lambda: "\n".join(p.tail() for p in self.all if not p.is_ready()))

    def close(self):
        for process in self.all:
            process.kill()


def let_pass(seconds, *fleets):
    """Let the load run on for that long, under supervision."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        for fleet in fleets:
            fleet.tend()
        time.sleep(min(0.2, left_s))
