"""Alerts and recording rules for Prometheus, made from `prometheus/alerts.yaml`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from rampmeter.manifests import pods
from rampmeter.manifests.pods import Data
from rampmeter.manifests.values import NAME

SOURCE = Path(__file__).parent / "prometheus" / "alerts.yaml"


def rules() -> Data:
    """The rules as Prometheus reads them."""
    told = yaml.safe_load(SOURCE.read_text())
    recorded = [rule for each in told["records"] for rule in _records(each)]
    alerts = [_alert(each, told["runbook"]) for each in told["alerts"]]
    return {"groups": [{"name": f"{NAME}-records", "rules": recorded}, {"name": NAME, "rules": alerts}]}


def prometheus_rule() -> Data:
    """The same for the Prometheus operator."""
    kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
    return {**kind, "metadata": pods.metadata(NAME), "spec": rules()}


def _records(told: Mapping[str, Any]) -> Iterator[Data]:
    """One rule for each window, which ends its name."""
    for window in told["windows"]:
        yield {"record": told["record"] + window, "expr": told["expr"].replace("$window", window)}


def _alert(told: Mapping[str, Any], runbook: str) -> Data:
    annotations = {name: told[name] for name in ("summary", "description")}
    annotations["runbook_url"] = f"{runbook}#{told['alert'].lower()}"
    rule = {name: told[name] for name in ("alert", "expr", "for") if name in told}
    return {**rule, "labels": {"severity": told["severity"]}, "annotations": annotations}
