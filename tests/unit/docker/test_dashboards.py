"""Dashboards ask Prometheus for what there is, by a data source that whoever looks may choose."""

import re
import shutil
import subprocess

import pytest
import yaml

from docker import dashboards
from docker.render import FOLDER
from rampmeter.manifests.values import NAME
from tests.support import metrics_page

MADE = dashboards.dashboards()
PANELS = [panel for made in MADE.values() for panel in made["panels"]]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_there_is_one_for_each_package_and_one_for_the_journey_of_a_request():
    assert set(MADE) == {"streams", "gpu_consumers", "autoscaler", "topics", "journey"}


def test_no_data_source_is_named():
    for made in MADE.values():
        (variable,) = made["templating"]["list"]
        assert variable["type"] == "datasource"
        for panel in made["panels"]:
            for part in (panel, *panel["targets"]):
                assert part["datasource"] == {"type": "prometheus", "uid": f"${{{variable['name']}}}"}


def test_panels_ask_only_for_metrics_that_there_are_and_legends_for_labels_that_are_kept():
    known = {family.name for family in metrics_page.families()}
    for panel in PANELS:
        (target,) = panel["targets"]
        for name in re.findall(r"rampmeter_\w+", target["expr"]):
            assert {name, re.sub(r"_(bucket|sum|count)$", "", name)} & known, name
        kept = {label.strip() for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in by.split(",")}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == kept - {"le"}, panel["title"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, which comes with prometheus")
def test_prometheus_understands_every_expression(tmp_path):
    rules = [{"record": f"panel:{n}", "expr": expression} for n, expression in enumerate(EXPRESSIONS)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(tmp_path / "panels.yaml")], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_them_where_compose_puts_them():
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    found = yaml.safe_load((FOLDER / "grafana" / "provisioning" / "dashboards" / f"{NAME}.yml").read_text())
    path = found["providers"][0]["options"]["path"]
    assert f"./grafana/dashboards:{path}:ro" in compose["services"]["grafana"]["volumes"]
