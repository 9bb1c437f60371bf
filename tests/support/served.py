"""A `rampmeter` command that serves until it is stopped, and says in its log where."""

import http.client
import re
import signal
import socket
import urllib.parse

from tests.support import command, started
from tests.support.streams_worker import wait_until


class Served:
    """Started in its log's folder, on a free port; `word` is what its log calls its address.

    `own` are settings of the section that is called so too.
    """

    def __init__(self, name, word, env, log_path, **own):
        self._word, self._log_path = word, log_path
        section = f"RAMPMETER_{word.upper()}__"
        env = {**env, **{f"{section}{key.upper()}": str(value) for key, value in {"port": 0, **own}.items()}}
        with log_path.open("wb") as log:
            self.process = started.popen(
                [command.RAMPMETER, name], cwd=log_path.parent, stdout=log, stderr=log, env=command.environment(env)
            )

    def log(self):
        return self._log_path.read_text()

    def _said(self, word):
        assert self.process.poll() is None, self.log()
        return re.search(rf"{word}=(\S+)", self.log())

    @property
    def url(self):
        """As the log says it."""
        return wait_until(lambda: self._said(self._word), 30, self.log)[1]

    @property
    def status_url(self):
        return wait_until(lambda: self._said("status"), 30, self.log)[1]

    def answer_to(self, sent):
        """Status, headers and body of what it answers to these bytes."""
        where = urllib.parse.urlsplit(self.url)
        with socket.create_connection((where.hostname, where.port), timeout=30) as line:
            line.sendall(sent)
            answer = http.client.HTTPResponse(line)
            answer.begin()
            return answer.status, answer.headers, answer.read()

    def stop(self):
        """Ask it to end; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)
