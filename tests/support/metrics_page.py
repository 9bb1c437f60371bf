"""The catalogue of metrics, docs/metrics.md, made from the collectors by `python -m tests.support.metrics_page`."""

from dataclasses import dataclass
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry

import streams.metrics
from autoscaler.metrics import EXITS, STATES
from autoscaler.metrics import Metrics as ScalerMetrics
from gpu_consumers import wiring
from gpu_consumers.metrics import Metrics as GpuMetrics
from rampmeter.door.metrics import STATUSES
from rampmeter.door.metrics import Metrics as DoorMetrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
UNITS = {
    "_timestamp_seconds": "Unix seconds", "_kv_token_seconds": "tokens x seconds", "_units_per_second": "cost units/s",
    "_seconds": "seconds", "_units": "cost units", "_celsius": "degrees Celsius",
    "_error_ratio": "factor", "_ratio": "0 to 1",
    "_records": "records", "_requests": "requests", "_tokens": "tokens", "_partitions": "partitions", "_lanes": "lanes",
    "_replicas": "replicas", "_pods": "pods", "_jobs": "jobs", "_events": "records", "_rows": "rows",
    "_available": "1 or 0", "_open": "1 or 0", "_degraded": "1 or 0", "_lost": "1 or 0", "_measured": "1 or 0",
    "_jain": "0 to 1", "_token_usage": "tokens", "_coefficient": "factor", "_estimates": "kinds", "_paused": "names",
}  # fmt: skip
"""By the end of a name; the first that fits.  Seconds are base units, and so is the cost unit of budgets."""
LABELS = {
    "outcome": "the outcomes of the README",
    "reason": "the reasons of replies and dead letters; of the autoscaler, those of its decisions",
    "verdict": "`admit`, `hold`, `defer`, `reject`; of claims, the answers of the claim table",
    "priority": "`high`, `medium`, `low`; empty or `unknown` where nobody could tell",
    "length": "`short`, `long`; empty or `unknown` where nobody could tell",
    "tier": "`high`, `medium`, `low`, `aged`",
    "pool": "the pools of the settings",
    "model": "the models of the settings, and `unknown`",
    "tenant": "at most `streams.tenant_series` names and `(other)`",
    "level": "`global`, `pool`, `class`",
    "name": "the name of a budget: `all`, a pool's or a class's",
    "agent": "the agents of a streams worker",
    "action": "the orders of the control topic, `forget` and `none`",
    "result": "how it ended, one of few words",
    "claim": "`priority`, `length`",
    "case": "what placement knew of the owners",
    "mode": "`closed`, `open`, `local_share`",
    "kind": "what is paused; of rebalances, `assigned`, `revoked`, `lost`",
    "why": "why a token or a topic proves nothing",
    "what": "what a shadow forgot",
    "interface": "`topic`, `http` (the door); a claim",
    "route": "`chat`, `enqueue`, `fetch`, `cancel`, `models`, `other`",
    "status": "HTTP: " + ", ".join(f"`{status}`" for status in STATUSES),
    "gen_ai_operation_name": "`chat`",
    "gen_ai_provider_name": "the engines of the settings",
    "gen_ai_request_model": "the models of the settings, and `unknown`",
    "gen_ai_token_type": "`input`, `output`",
    "error_type": "empty for a completed attempt; else the reasons of replies",
    "where": "`buffered`, `running`, `foreign`",
    "how": ", ".join(f"`{how}`" for how in EXITS),
    "state": ", ".join(f"`{state}`" for state in STATES),
}
"""What bounds the values of each label."""
INTRO = """# Metrics

Every process serves these at `/metrics` on `RAMPMETER_STATUS_PORT`, beside `process_cpu_seconds_total`,
`process_resident_memory_bytes` and what else the client library tells of a process. Names and meanings are
stable: a change is in the CHANGELOG. Those that begin with `gen_ai_` are the GenAI metrics of OpenTelemetry's
conventions in Prometheus' form, with their buckets. Series whose labels are closed lists begin at zero. What is
unknown (a GPU without a driver, a lag that could not be read) has no series, or keeps its last value beside an
`..._available 0`. A shadow's series are those of streams under `rampmeter_shadow_`. No label holds a request's id.

This page is made from the code: `python -m tests.support.metrics_page`.
"""


@dataclass(frozen=True)
class Family:
    """One metric."""

    package: str
    name: str
    kind: str
    labels: tuple
    text: str

    @property
    def unit(self):
        """What it is counted in; a plain number of what its name says where no suffix tells."""
        base = self.name.removesuffix("_total")
        return next((unit for suffix, unit in UNITS.items() if base.endswith(suffix)), "count")


def families():
    """Every metric of ours, by package."""
    gpu, scaler, door = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
    DoorMetrics(door)
    GpuMetrics(gpu)
    ScalerMetrics(["default"], scaler)
    found = [
        *_of("streams", REGISTRY, "rampmeter_streams_"),
        *_of("gpu_consumers", gpu, "rampmeter_gpu_"),
        *_of("gpu_consumers", gpu, "gen_ai_"),
        *_of("autoscaler", scaler, "rampmeter_autoscaler_"),
        *_of("rampmeter serve", door, "rampmeter_door_"),
    ]
    for name, (text, _) in wiring.readings(None, None, None).items():
        found.append(Family("gpu_consumers", f"rampmeter_gpu_{name}", "gauge", (), text))
    return sorted(found, key=lambda family: (family.package, family.name))


def _of(package, registry, prefix):
    for collector in registry._collector_to_names:
        if getattr(collector, "_name", "").startswith(prefix):
            suffix = "_total" if collector._type == "counter" else ""
            yield Family(
                package, collector._name + suffix, collector._type, collector._labelnames, collector._documentation
            )


def render():
    """The page."""
    assert streams.metrics
    lines = [INTRO]
    known = families()
    for package in sorted({family.package for family in known}):
        lines += [f"## {package}", "", "| metric | type | unit | labels | what it says |", "|---|---|---|---|---|"]
        lines += [
            f"| `{one.name}` | {one.kind} | {one.unit} | {', '.join(one.labels)} | {one.text.rstrip('.')} |"
            for one in known
            if one.package == package
        ]
        lines.append("")
    used = {label for family in known for label in family.labels}
    lines += ["## Labels", "", "| label | values |", "|---|---|"]
    lines += [f"| {label} | {text} |" for label, text in LABELS.items() if label in used]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
