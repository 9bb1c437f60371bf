"""A real `rampmeter serve` as a child process."""

import json
import urllib.error
import urllib.request

from tests.support.served import Served

SECRETS = {name: f"sk-{name}-of-more-than-sixteen" for name in ("acme", "humble", "poor", "other")}
KEYS = {
    "acme": {"secret": SECRETS["acme"], "tenant": "acme", "priority": "high"},
    "humble": {"secret": SECRETS["humble"], "tenant": "acme", "priority": "low"},
    "poor": {"secret": SECRETS["poor"], "tenant": "poor"},
    "other": {"secret": SECRETS["other"], "tenant": "other"},
}


class Door(Served):
    """`rampmeter serve` with these variables; its address is that of the API, with its version."""

    def __init__(self, env, folder, **door):
        keys = {"RAMPMETER_DOOR__KEYS": json.dumps(KEYS)}
        super().__init__("serve", "door", {**env, **keys}, folder / "door.log", **door)

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
