"""A real Prometheus that watches a stack of `rampmeter up`."""

import json
import re
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from docker.render import FOLDER
from tests.support import started
from tests.support.streams_worker import free_port, wait_until

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs Prometheus: apt-get install prometheus"
)
LOCAL = FOLDER / "prometheus" / "local.yml"
READY_S = 30.0
STEP_S = 2
"""Also the longest that a scrape may take: on a busy machine less is a gap."""
LEAST_WINDOW_S, LEAST_WAIT_S = 20, 6
"""Of scaled rules.  A window must outlast the gaps that a process makes which stands still."""


def scaled(rules, factor):
    """Rules whose windows and waits are as many times shorter, down to a least; thresholds stay what they are."""

    def shorter(text, least_s):
        seconds = int(text[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[text[-1]] / factor
        return f"{max(least_s, round(seconds))}s"

    def window(found):
        return found[1] + shorter(found[2], LEAST_WINDOW_S)

    def of_rule(rule):
        made = {**rule, "expr": re.sub(r"(\[|offset )(\d+[smhd])", window, rule["expr"])}
        return made | ({"for": shorter(rule["for"], LEAST_WAIT_S)} if "for" in rule else {})

    return {"groups": [{**group, "rules": [of_rule(rule) for rule in group["rules"]]} for group in rules["groups"]]}


class Prometheus:
    """In a `with` block.  Reads what docker/prometheus/local.yml says, every `STEP_S`."""

    def __init__(self, folder, *, rules=None, more=(), home=None):
        """`folder` is that in which `rampmeter up` runs; `more` are addresses of other processes.

        `home` is where its own files are: the same folder, unless there is another Prometheus.
        """
        self._stack, self._rules, self._more = folder / ".rampmeter", rules, more
        self._folder = home or folder
        self.url = f"http://127.0.0.1:{free_port()}"

    def __enter__(self):
        config = yaml.safe_load(LOCAL.read_text())
        config["global"] = dict.fromkeys(config["global"], f"{STEP_S}s")
        (job,) = config["scrape_configs"]
        (found,) = job["file_sd_configs"]
        found["files"] = [str(self._stack / Path(name).name) for name in found["files"]]
        found["refresh_interval"] = f"{STEP_S}s"
        job["static_configs"] = [{"targets": list(self._more)}]
        config["rule_files"] = []
        if self._rules is not None:
            (self._folder / "rules.yaml").write_text(yaml.safe_dump(self._rules))
            config["rule_files"] = ["rules.yaml"]
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with (self._folder / "prometheus.log").open("wb") as log:
            self.process = started.popen(
                [
                    "prometheus", f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'tsdb'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        wait_until(self._is_ready, READY_S, self.log)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def log(self):
        return (self._folder / "prometheus.log").read_text()

    def _is_ready(self):
        assert self.process.poll() is None, self.log()
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def query(self, expression):
        """Labels and value of each series that the expression has now; a value that is no number is none."""
        asked = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{asked}", timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in found if one["value"][1] != "NaN"]

    def firing(self):
        """Names of the alerts that fire."""
        return {labels["alertname"] for labels, _ in self.query('ALERTS{alertstate="firing"}')}
