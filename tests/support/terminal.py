"""A command on a terminal of its own."""

import os
import pty
import select
import sys
import termios
import time

from tests.support import started
from tests.support.command import environment


class Terminal:
    """Runs it with standard input, output and errors on a pseudo-terminal."""

    def __init__(self, code, *args, cwd, env=None, size=(140, 40)):
        """`code` is Python; the process sees `args` as its own."""
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, size[::-1])
        variables = {**environment(env or {}), "TERM": "xterm-256color", "COLUMNS": str(size[0]), "LINES": str(size[1])}
        self.process = started.popen(
            [sys.executable, "-c", code, *args], cwd=cwd, env=variables, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self._ours, self.said = ours, ""

    def press(self, keys):
        os.write(self._ours, keys.encode())

    def until(self, word, limit_s=60):
        """Read until the word was written; what was written until then."""
        end_s = time.monotonic() + limit_s
        while word not in self.said:
            assert time.monotonic() < end_s, self.said[-4000:]
            assert self._read() or self.process.poll() is None, self.said[-4000:]
        return self.said

    def end(self, limit_s=30):
        """Its status, once it has ended."""
        end_s = time.monotonic() + limit_s
        while self.process.poll() is None:
            assert time.monotonic() < end_s, self.said[-4000:]
            self._read()
        while self._read():
            pass
        os.close(self._ours)
        return self.process.returncode

    def _read(self):
        if not select.select([self._ours], [], [], 0.1)[0]:
            return False
        try:
            found = os.read(self._ours, 65536)
        except OSError:  # its other end is closed
            return False
        self.said += found.decode(errors="replace")
        return bool(found)
