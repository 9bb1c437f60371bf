"""A real `rampmeter serve` as a child process."""

import json
import re
import signal
import urllib.error
import urllib.request

from tests.support import command, started
from tests.support.streams_worker import wait_until

SECRETS = {name: f"sk-{name}-of-more-than-sixteen" for name in ("acme", "humble", "poor", "other")}
KEYS = {
    "acme": {"secret": SECRETS["acme"], "tenant": "acme", "priority": "high"},
    "humble": {"secret": SECRETS["humble"], "tenant": "acme", "priority": "low"},
    "poor": {"secret": SECRETS["poor"], "tenant": "poor"},
    "other": {"secret": SECRETS["other"], "tenant": "other"},
}


class Door:
    """`rampmeter serve` with these variables, on a free port."""

    def __init__(self, env, folder, **door):
        self._log_path = folder / "door.log"
        variables = {f"RAMPMETER_DOOR__{name.upper()}": str(value) for name, value in {"port": 0, **door}.items()}
        with self._log_path.open("wb") as log:
            self.process = started.popen(
                [command.RAMPMETER, "serve"], cwd=folder, stdout=log, stderr=log,
                env=command.environment({**env, "RAMPMETER_DOOR__KEYS": json.dumps(KEYS), **variables}),
            )  # fmt: skip

    def log(self):
        return self._log_path.read_text()

    def _said(self, pattern):
        assert self.process.poll() is None, self.log()
        return re.search(pattern, self.log())

    @property
    def url(self):
        """Of the API, with its version."""
        return wait_until(lambda: self._said(r"door=(\S+)"), 30, self.log)[1]

    @property
    def status_url(self):
        return wait_until(lambda: self._said(r"status=(\S+)"), 30, self.log)[1]

    def status(self, path):
        try:
            with urllib.request.urlopen(f"{self.status_url}/{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, line):
        """The value of a metric's line without its number; 0 when it is not there."""
        found = [text for text in self.status("metrics")[1].splitlines() if text.rsplit(" ", 1)[0] == line]
        return float(found[0].rsplit(" ", 1)[1]) if found else 0.0

    def call(self, method, path, body=None, key="acme", **headers):
        """Status, headers and decoded body of one HTTP request."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            named["Authorization"] = f"Bearer {SECRETS.get(key, key)}"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self.url}{path}", data, named, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return answer.status, answer.headers, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.headers, json.loads(error.read())

    def stop(self):
        """Ask it to end; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)
