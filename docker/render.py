"""`python -m docker.render` writes the files of others (`ROOTS`); a test knows stale ones."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml

from docker import alerts, dashboards
from gpu_consumers.settings import GpuSettings
from rampmeter import deployment
from rampmeter.deployment import Machine
from rampmeter.manifests import access, scaling, services
from rampmeter.manifests.pods import Data
from rampmeter.manifests.values import NAME, Values
from topics.records import Role
from topics.settings import variable_name

FOLDER = Path(__file__).parent
ROOTS = ("kubernetes", "helm", "prometheus/rules", "grafana/dashboards")
"""Folders of which every file is written here."""
POOL = "default"
VALUES = Values()
GPU_POOLS = {
    POOL: {
        "lane_partitions": 16,
        "gpu_types": ["NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"],
        "role_gpu_types": {"short": ["NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"]},
    }
}
GPU = {
    "pools": GPU_POOLS,
    "models": {"llama-3-8b": {"pool": POOL}},
    "gpu": {"engine": "vllm", "vllm_model": "/models/llama-3-8b"},
}
CPU = {"pools": {POOL: {"lane_partitions": 4}, "cpu": {"lane_partitions": 1}}}
CPU_IMAGE = "rampmeter-cpu:0.1.0"
WHOLE = Machine(cpu="8", memory="64Gi", models_claim="models")
SLICE = Machine(gpu_resource="nvidia.com/mig-3g.20gb", memory="32Gi", models_claim="models")
SIMULATED = Machine(gpu_resource=None, cpu="500m", memory="512Mi", engine="simulated")
SMALL_MODEL = Machine(gpu_resource=None, cpu="2", memory="1Gi", engine="llama")
_COUNT = re.compile(r"(\w*[rR]eplica(?:s|Count): )'(\{\{ \.Values\.\w+ \}\})'")
_MORE_SETTINGS = """\
{{- range $name, $value := .Values.settings }}
  {{ $name }}: {{ $value | quote }}
{{- end }}
"""
_BANNER = "# Written by `python -m docker.render`.\n"


def texts() -> dict[str, str]:
    """Every file by its path below this folder."""
    found = {f"kubernetes/{path}": _yaml(documents) for path, documents in _kustomize().items()}
    found[f"prometheus/rules/{NAME}.yaml"] = _yaml([alerts.rules()])
    for name, made in dashboards.dashboards().items():
        found[f"grafana/dashboards/{name}.json"] = json.dumps(made, indent=1) + "\n"
    return found | {f"helm/{NAME}/{path}": text for path, text in _helm().items()}


def written() -> dict[str, str]:
    """The files that are there."""
    paths = [path for root in ROOTS for path in (FOLDER / root).rglob("*.*") if path.is_file()]
    return {str(path.relative_to(FOLDER)): path.read_text() for path in paths}


def parts(values: Values) -> dict[str, list[Data]]:
    """What every deployment has, by file."""
    budgets = [services.disruption_budget(component) for component in ("streams", "gpu-consumers")]
    return {
        "settings": [services.settings(values)],
        "topics": [services.topics(values)],
        "streams": [services.streams(values)],
        "autoscaler": [services.autoscaler(values)],
        "console": services.console(values),
        "access": access.role(values),
        "network": access.network(values),
        "budgets": budgets,
    }


def _kustomize() -> dict[str, list[Data]]:
    base = {"namespace": [_namespace()], **parts(VALUES)}
    found = {f"base/{name}.yaml": documents for name, documents in base.items()}
    found["base/kustomization.yaml"] = [_kustomization(base, namespace=VALUES.namespace)]
    small = [(POOL, Role.GENERAL, SIMULATED), ("cpu", Role.GENERAL, SMALL_MODEL)]
    found |= _overlay("cpu", CPU, CPU_IMAGE, small)
    fleet = [(POOL, Role.GENERAL, WHOLE), (POOL, Role.LONG, WHOLE), (POOL, Role.SHORT, SLICE)]
    found |= _overlay("gpu", GPU, VALUES.consumer_image, fleet)
    found |= _component(
        "monitoring", {"pod-monitor": [access.pod_monitor()], "prometheus-rule": [alerts.prometheus_rule()]}
    )
    found |= _component("hpa", {"hpa": [scaling.hpa(VALUES, POOL)]}, "metric")
    keda = {"scaled-object": [scaling.scaled_object(VALUES, POOL)], "service": [scaling.scaler_service()]}
    found |= _component("keda", keda, "keda")
    for name in ("hpa", "keda"):
        joined = _kustomization({}, resources=["../gpu"], components=[f"../../components/{name}"])
        found[f"overlays/gpu-{name}/kustomization.yaml"] = [joined]
    return found


def _overlay(
    name: str, settings: Mapping[str, Any], image: str, fleet: list[tuple[str, Role, Machine]]
) -> dict[str, list[Data]]:
    loaded = GpuSettings.model_validate(settings)
    consumers = [deployment.of_role(loaded, image, pool, role, machine) for pool, role, machine in fleet]
    patch = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": _variables(settings)}
    return {
        f"overlays/{name}/consumers.yaml": consumers,
        f"overlays/{name}/settings.yaml": [patch],
        f"overlays/{name}/kustomization.yaml": [
            _kustomization({}, resources=["../../base", "consumers.yaml"], patches=[{"path": "settings.yaml"}])
            | {"namespace": VALUES.namespace}
        ],
    }


def _variables(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings as a process finds them in its environment."""
    gpu = {variable_name(("gpu", name)): str(value) for name, value in settings.get("gpu", {}).items()}
    rest = {variable_name((name,)): json.dumps(value) for name, value in settings.items() if name != "gpu"}
    return rest | gpu


def _component(name: str, files: Mapping[str, list[Data]], target: str | None = None) -> dict[str, list[Data]]:
    found = {f"components/{name}/{file}.yaml": documents for file, documents in files.items()}
    made = _kustomization(files, kind="Component", apiVersion="kustomize.config.k8s.io/v1alpha1")
    if target is not None:
        found[f"components/{name}/autoscaler.yaml"] = [services.autoscaler(VALUES, target)]
        made["patches"] = [{"path": "autoscaler.yaml"}]
    return found | {f"components/{name}/kustomization.yaml": [made]}


def _kustomization(files: Mapping[str, object], **more: object) -> Data:
    head: Data = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return {**head, "resources": [f"{file}.yaml" for file in files], **more}


def _namespace() -> Data:
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": VALUES.namespace, "labels": enforced},
    }


def _helm() -> dict[str, str]:
    chart = {"apiVersion": "v2", "name": NAME, "type": "application", "version": "0.1.0", "appVersion": "0.1.0"}
    chart["description"] = "Traffic control on Kafka for GPUs that serve large language models"
    asked = {name: value for name, value in asdict(VALUES).items() if name != "namespace"}
    asked |= {"target": "kubernetes", "pod_monitor": False, "settings": _variables(GPU)}
    found = {"Chart.yaml": _yaml([chart]), "values.yaml": _yaml([asked])}
    return found | {f"templates/{name}.yaml": text for name, text in _templates()}


def _templates() -> Iterator[tuple[str, str]]:
    values = Values(**{field.name: f"{{{{ .Values.{field.name} }}}}" for field in fields(Values)})
    values = Values(**{**asdict(values), "namespace": "{{ .Release.Namespace }}"})
    machine = Machine(
        gpu_resource=values.gpu_resource,
        cpu=values.consumer_cpu,
        memory=values.consumer_memory,
        models_claim=values.models_claim,
    )
    common = parts(values)
    del common["autoscaler"]
    consumers = deployment.of_role(GpuSettings.model_validate(GPU), values.consumer_image, POOL, Role.GENERAL, machine)
    for name, documents in {**common, "consumers": [consumers]}.items():
        yield name, _template(documents) + (_MORE_SETTINGS if name == "settings" else "")
    variants = [_template([services.autoscaler(values, to)], _is_target(to)) for to in ("kubernetes", "keda", "metric")]
    yield "autoscaler", _BANNER + "".join(text.removeprefix(_BANNER) for text in variants)
    yield "hpa", _template([scaling.hpa(values, POOL)], _is_target("metric"))
    yield "keda", _template([scaling.scaled_object(values, POOL), scaling.scaler_service()], _is_target("keda"))
    yield "pod-monitor", _template([access.pod_monitor()], ".Values.pod_monitor")


def _is_target(target: str) -> str:
    return f'eq .Values.target "{target}"'


def _template(documents: list[Data], condition: str | None = None) -> str:
    """Counts must not be quoted."""
    text = _COUNT.sub(r"\1\2", _yaml(documents))
    if condition is None:
        return text
    return f"{_BANNER}{{{{- if {condition} }}}}\n---\n{text.removeprefix(_BANNER)}{{{{- end }}}}\n"


class _Plain(yaml.SafeDumper):
    """Writes equal parts each time, instead of references to the first."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _yaml(documents: list[Data]) -> str:
    return _BANNER + yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=120)


def main() -> int:
    """Write all files and remove those that are no longer made."""
    made = texts()
    for stale in set(written()) - made.keys():
        (FOLDER / stale).unlink()
    for name, text in made.items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
