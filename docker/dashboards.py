"""Dashboards for Grafana, made from `grafana/dashboards.yaml`."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from rampmeter.manifests.pods import Data
from rampmeter.manifests.values import NAME

SOURCE = Path(__file__).parent / "grafana" / "dashboards.yaml"
_COLUMNS, _WIDTH, _HEIGHT = 2, 12, 8
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboards() -> dict[str, Data]:
    """Each by its name."""
    told = yaml.safe_load(SOURCE.read_text())
    return {name: _dashboard(name, panels) for name, panels in told.items()}


def _dashboard(name: str, panels: Sequence[Sequence[str]]) -> Data:
    variable = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": f"{NAME}-{name}",
        "title": f"Rampmeter: {name}",
        "tags": [NAME],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [variable]},
        "panels": [_panel(place, panel) for place, panel in enumerate(panels)],
    }


def _panel(place: int, panel: Sequence[str]) -> Data:
    unit, title, expression, legend = panel
    row, column = divmod(place, _COLUMNS)
    return {
        "id": place + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _DATASOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [{"refId": "A", "datasource": _DATASOURCE, "expr": expression, "legendFormat": legend}],
    }
