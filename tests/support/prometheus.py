"""A real Prometheus that watches a stack of `rampmeter up`."""

import json
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request

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
STEP_S = 1


class Prometheus:
    """In a `with` block.  Reads what docker/prometheus/local.yml says, once a second."""

    def __init__(self, folder, *, rules=None, more=()):
        """`folder` is that in which `rampmeter up` runs; `more` are addresses of other processes."""
        self._folder, self._rules, self._more = folder, rules, more
        self.url = f"http://127.0.0.1:{free_port()}"

    def __enter__(self):
        config = yaml.safe_load(LOCAL.read_text())
        config["global"] = dict.fromkeys(config["global"], f"{STEP_S}s")
        (job,) = config["scrape_configs"]
        (found,) = job["file_sd_configs"]
        found["files"] = [str(self._folder / ".rampmeter" / "targets.json")]
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
