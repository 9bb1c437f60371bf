"""docs/metrics.md lists every metric of ours as the code has it, and they are as metrics should be."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpu_consumers.metrics import Metrics
from rampmeter.door.metrics import Metrics as DoorMetrics
from streams import metrics, series
from streams.settings import StreamsSettings
from tests.support import metrics_page

ROOT = Path(__file__).parents[2]
FAMILIES = metrics_page.families()
OPEN_LABELS = {
    "agent": "a worker names its agents when it runs",
    "model": "the settings', and more than one worker's",
    "gen_ai_request_model": "the same",
    "tenant": "whoever was largest",
    "name": "budgets that were touched",
    "what": "only of a shadow",
}
OPEN = {
    "rampmeter_streams_promotions_skipped_total": "its reasons are sentences of the promoter",
    "rampmeter_streams_fairness_jain": "absent until a window is whole",
    "rampmeter_streams_ledger_drift_units": "absent until the worker that leads has looked",
    "rampmeter_gpu_dead_letters_total": "its reasons are those of the engine and of lane records",
}
"""Families that cannot begin at zero, and why."""


def test_the_page_is_that_of_the_code():
    assert metrics_page.render() == metrics_page.PAGE.read_text(), "run `python -m tests.support.metrics_page`"


def test_no_module_but_those_of_metrics_makes_a_series():
    makers = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum", "GaugeMetricFamily", "CounterMetricFamily"}
    for package in ("topics", "streams", "gpu_consumers", "autoscaler", "rampmeter"):
        for path in (ROOT / package).rglob("*.py"):
            if "prometheus_client" not in (text := path.read_text()):
                continue
            tree = ast.parse(text)
            taken = {
                alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("prometheus_client")
                for alias in node.names
            }
            made = {
                node.func.id
                for node in ast.walk(tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in taken & makers
            }
            assert not made or path.name == "metrics.py", path


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_metric_says_what_it_is_in_base_units_and_bounded_labels(family):
    assert family.text
    assert set(family.labels) <= metrics_page.LABELS.keys()
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert not family.name.removesuffix("_total").endswith(("_ms", "_s", "_millis", "_kb", "_mb", "_percent", "_count"))
    if family.kind != "counter":
        assert family.unit != "count", "name its unit"


def test_what_has_closed_labels_begins_at_zero():
    series.begin(StreamsSettings())
    shown = {
        "streams": {sample.name for family in metrics.REGISTRY.collect() for sample in family.samples},
        "gpu_consumers": _names_of(Metrics),
        "rampmeter serve": _names_of(DoorMetrics),
    }
    for family in FAMILIES:
        is_open = set(family.labels) & OPEN_LABELS.keys() or family.name in OPEN
        if family.package in shown and family.labels and not is_open:
            wanted = family.name + ("_count" if family.kind == "histogram" else "")
            assert wanted in shown[family.package], family.name


def _names_of(made):
    registry = CollectorRegistry()
    made(registry)
    return {sample.name for family in registry.collect() for sample in family.samples}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, which comes with prometheus")
def test_prometheus_finds_nothing_to_complain_of():
    # In a process of its own: other tests leave series of theirs in this one's registry.
    text = subprocess.run([sys.executable, "-c", _SHOWN], capture_output=True, check=True, cwd=ROOT, text=True).stdout
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


_SHOWN = """
import sys
from prometheus_client import REGISTRY, generate_latest
from autoscaler.metrics import Metrics as Scaler
from gpu_consumers.metrics import Metrics as Gpu
from rampmeter.door.metrics import Metrics as Door
from streams import metrics, series
from streams.settings import StreamsSettings
Gpu(REGISTRY), Scaler(["default"]), Door(REGISTRY), series.begin(StreamsSettings())
sys.stdout.write(generate_latest(REGISTRY).decode())
"""
