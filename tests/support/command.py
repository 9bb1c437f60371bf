"""Run the `rampmeter` command as a user would: another process, its own folder."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support import started

RAMPMETER = str(Path(sys.executable).with_name("rampmeter"))


def environment(extra):
    return {**{name: value for name, value in os.environ.items() if not name.startswith("RAMPMETER_")}, **extra}


def run(*args, cwd, env=None, timeout_s=100):
    """The finished process, with text output."""
    return subprocess.run(
        [RAMPMETER, *args],
        cwd=cwd,
        env=environment(env or {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def one_line_of_json(done):
    """What `--json` printed: exactly one line on stdout."""
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    return json.loads(done.stdout)


class Up:
    """`rampmeter up` in the background; use in a `with` block."""

    def __init__(self, *args, cwd, env=None, ready_s=60):
        self.cwd, self._env = cwd, env or {}
        self._log = (cwd / "up.log").open("w+")
        self.process = started.popen(
            [RAMPMETER, "up", *args], cwd=cwd, env=environment(self._env), stdout=self._log, stderr=self._log
        )
        self._ready_s = ready_s

    def __enter__(self):
        started_s = time.monotonic()
        while not (self.cwd / ".rampmeter" / "stack.json").exists():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() - started_s < self._ready_s, self.said()
            time.sleep(0.1)
        self.took_s = time.monotonic() - started_s
        return self

    def __exit__(self, *_):
        self.stop()

    def said(self):
        self._log.flush()
        return (self.cwd / "up.log").read_text()

    def run(self, *args, **kwargs):
        """Another command in the same folder."""
        return run(*args, cwd=self.cwd, env={**self._env, **kwargs.pop("env", {})}, **kwargs)

    def endpoints(self):
        return json.loads((self.cwd / ".rampmeter" / "stack.json").read_text())["endpoints"]

    def stop(self, timeout_s=40):
        """End it as Ctrl-C does; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout_s)
