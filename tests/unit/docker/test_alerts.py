"""Every alert fires when it should, is quiet when it should, and tells who reads it what to do."""

import re
import shutil
import subprocess

import pytest
import yaml

from docker import alerts, render
from docker.render import FOLDER
from rampmeter.manifests.values import NAME
from tests.support import metrics_page

RULES = FOLDER / "prometheus" / "rules" / f"{NAME}.yaml"
RECORDS, ALERTS = (group["rules"] for group in yaml.safe_load(RULES.read_text())["groups"])
BY_NAME = {alert["alert"]: alert for alert in ALERTS}
CASES = yaml.safe_load((FOLDER.parent / "tests" / "unit" / "docker" / "alert_cases.yaml").read_text())
assert all(isinstance(values, str) for cases in CASES.values() for case in cases for values in case["series"].values())
KNOWN = {family.name for family in metrics_page.families()}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool, which comes with prometheus"
)


def check(alert, at, labels):
    """That these series of an alert fire, and no others."""
    severity = BY_NAME[alert]["labels"]["severity"]
    told = [{"alertname": alert, "alertstate": "firing", "severity": severity, **more} for more in labels]
    return {
        "expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}',
        "eval_time": at,
        "exp_samples": [{"labels": f"ALERTS{{{shown(each)}}}", "value": 1} for each in told],
    }


def shown(labels):
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def suite(alert, folder):
    """A file that asks promtool about the cases of an alert; it evaluates no other rule, which would take its time."""
    cases = CASES[alert]
    (interval,) = {case.get("every", "5s") for case in cases}
    records = RECORDS if f"{NAME}:" in BY_NAME[alert]["expr"] else []
    groups = [{"name": "records", "rules": records}, {"name": "alerts", "rules": [BY_NAME[alert]]}]
    rules = write(folder / f"{alert}.rules.yaml", {"groups": groups})
    told = {
        "rule_files": [rules],
        "evaluation_interval": interval,
        "group_eval_order": ["records", "alerts"],
        "tests": [
            {
                "name": f"{alert} {'fires' if case['fires'] else 'is quiet'}",
                "interval": interval,
                "input_series": [{"series": name, "values": values} for name, values in case["series"].items()],
                "promql_expr_test": [
                    check(alert, case["at"], case["fires"]),
                    *([check(alert, case["not_yet"], [])] if "not_yet" in case else []),
                ],
            }
            for case in cases
        ],
    }
    return write(folder / f"{alert}.test.yaml", told)


def write(path, document):
    path.write_text(yaml.safe_dump(document))
    return str(path)


@needs_promtool
def test_each_alert_fires_and_is_quiet_as_its_cases_say(tmp_path):
    done = promtool("test", "rules", *[suite(alert, tmp_path) for alert in CASES])
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_a_case_that_is_wrong_would_be_noticed(tmp_path, monkeypatch):
    (_, quiet) = CASES["RampmeterGpuHot"]
    monkeypatch.setitem(CASES, "RampmeterGpuHot", [{**quiet, "fires": [{"instance": "a"}]}])
    assert promtool("test", "rules", suite("RampmeterGpuHot", tmp_path)).returncode == 1


@needs_promtool
@pytest.mark.parametrize("name", ["prometheus.yml", "local.yml"])
def test_prometheus_reads_the_rules_and_the_configuration_that_names_them(name):
    done = promtool("check", "config", str(FOLDER / "prometheus" / name))
    assert (done.returncode, "1 rule files" in done.stdout) == (0, True), done.stdout + done.stderr


def promtool(*args):
    return subprocess.run(["promtool", *args], capture_output=True, check=False, text=True, timeout=300)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_how_bad_what_and_where_the_way_out_is(alert):
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    told = alert["annotations"]
    assert told["summary"]
    assert told["runbook_url"] == f"RUNBOOK.md#{alert['alert'].lower()}", "no address is known but a path in here"
    used = set(re.findall(r"\$labels\.(\w+)", told["description"]))
    firing = [labels for case in CASES[alert["alert"]] for labels in case["fires"]]
    assert used <= {name for labels in firing for name in labels}, "it names a label that the alert does not have"


def test_a_runbook_is_linked_where_the_source_says_it_is(monkeypatch, tmp_path):
    source = yaml.safe_load(alerts.SOURCE.read_text())
    write(tmp_path / "alerts.yaml", {**source, "runbook": "https://wiki.internal/rampmeter"})
    monkeypatch.setattr(alerts, "SOURCE", tmp_path / "alerts.yaml")
    for rule in alerts.rules()["groups"][1]["rules"]:
        assert rule["annotations"]["runbook_url"] == f"https://wiki.internal/rampmeter#{rule['alert'].lower()}"


def test_every_alert_has_cases_of_both_kinds():
    assert {alert for alert, cases in CASES.items() if {bool(case["fires"]) for case in cases} == {True, False}} == set(
        BY_NAME
    )
    assert len(ALERTS) == len(BY_NAME)


def test_rules_and_cases_name_only_metrics_that_there_are():
    told = [rule["expr"] for rule in (*RECORDS, *ALERTS)]
    told += [name for cases in CASES.values() for case in cases for name in case["series"]]
    for name in re.findall(r"\brampmeter_\w+", " ".join(told)):
        assert {name, name.removesuffix("_bucket")} & KNOWN, name
    recorded = {rule["record"] for rule in RECORDS}
    assert set(re.findall(r"\brampmeter:[\w:]+", " ".join(told))) <= recorded


def test_the_operator_is_given_the_same_rules():
    given = yaml.safe_load(render.texts()["kubernetes/components/monitoring/prometheus-rule.yaml"])
    assert given["kind"] == "PrometheusRule"
    assert given["spec"] == alerts.rules() == yaml.safe_load(RULES.read_text())
