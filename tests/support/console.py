"""A real `rampmeter console` as a child process."""

import json
import time
import urllib.error
import urllib.request
from contextlib import closing
from typing import Any, NamedTuple

from tests.support.served import Served

TOKEN = "TOKEN-of-sixteen-or-more"


class Told(NamedTuple):
    """What a console has told so far: its last reading, and the points of its charts."""

    page: Any
    waits: list
    queues: list


class Console(Served):
    """`rampmeter console` with these variables; its address ends with a slash."""

    def __init__(self, env, folder, **console):
        log_path = folder / f"console-{len(list(folder.glob('console-*')))}.log"
        super().__init__("console", "console", env, log_path, **console)

    def call(self, path, body=None, **headers):
        """Status, headers and body of one HTTP request."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data, named), timeout=30) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def order(self, body, token=TOKEN):
        """Status and decoded body of an order."""
        named = {} if token is None else {"Authorization": f"Bearer {token}"}
        status, _, told = self.call("api/orders", body, Content_Type="application/json", **named)
        return status, json.loads(told)

    def follow(self):
        """An open stream of readings; close it."""
        return urllib.request.urlopen(f"{self.url}api/readings", timeout=30)

    def events(self):
        """(name, data) of each event, the history first."""
        with closing(self.follow()) as stream:
            name = None
            for line in stream:
                word, _, rest = line.decode().rstrip("\n").partition(": ")
                if word == "event":
                    name = rest
                elif word == "data":
                    yield name, json.loads(rest)

    def until(self, condition, timeout_s=40.0):
        """What was told once it fits."""
        end_s, page, waits, queues = time.monotonic() + timeout_s, None, {}, {}
        for name, told in self.events():
            waits |= {point["at_s"]: point for point in told["waits"]}
            queues |= {point["at_s"]: point for point in told["queues"]}
            page = told["page"] if name == "reading" else page
            so_far = Told(page, list(waits.values()), list(queues.values()))
            if page is not None and condition(so_far):
                return so_far
            assert time.monotonic() < end_s, json.dumps(so_far)[:3000] + self.log()[-2000:]
        raise AssertionError(f"the stream ended\n{self.log()}")
