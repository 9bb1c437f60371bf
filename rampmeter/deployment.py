"""The GPU consumers as Kubernetes Deployments: what their settings ask of the nodes and of an end."""

import math
from collections.abc import Sequence

from autoscaler.settings import default_deployment
from gpu_consumers.settings import GpuSettings
from topics.records import Role
from topics.settings import ENV_PREFIX

_GPU_RESOURCE = "nvidia.com/gpu"
_STATUS_PORT = 9100
_NAME = "rampmeter"
"""Of the ConfigMap and the Secret with the other settings."""


def consumers(settings: GpuSettings, image: str, roles: Sequence[Role], gpu_label: str) -> dict[str, object]:
    """A list of one Deployment for each pool and role, without `replicas`: those are the autoscaler's.

    A consumer runs only on nodes whose label names one of its GPU types, and is killed only after it can have ended.
    """
    found = [_deployment(settings, image, pool, role, gpu_label) for pool in sorted(settings.pools) for role in roles]
    return {"apiVersion": "v1", "kind": "List", "items": found}


def _deployment(settings: GpuSettings, image: str, pool: str, role: Role, gpu_label: str) -> dict[str, object]:
    labels = {
        "app.kubernetes.io/name": _NAME,
        "app.kubernetes.io/component": "gpu-consumers",
        "rampmeter/pool": pool,
        "rampmeter/role": role.value,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": default_deployment(pool, role), "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(settings, image, pool, role, gpu_label)},
        },
    }


def _pod(settings: GpuSettings, image: str, pool: str, role: Role, gpu_label: str) -> dict[str, object]:
    gpu_types = settings.pools[pool].gpu_types_of(role)
    env = {"GPU__POOL": pool, "GPU__ROLE": role.value, "STATUS_HOST": "0.0.0.0", "STATUS_PORT": str(_STATUS_PORT)}  # noqa: S104 - of a pod
    container = {
        "name": "consumer",
        "image": image,
        "command": ["python", "-m", "gpu_consumers"],
        "env": [{"name": ENV_PREFIX + name, "value": value} for name, value in env.items()],
        "envFrom": [{"configMapRef": {"name": _NAME}}, {"secretRef": {"name": _NAME, "optional": True}}],
        "ports": [{"name": "status", "containerPort": _STATUS_PORT}],
        "livenessProbe": {"httpGet": {"path": "/livez", "port": "status"}},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "status"}},
        "resources": {"limits": {_GPU_RESOURCE: 1}},
    }
    pod: dict[str, object] = {
        "terminationGracePeriodSeconds": math.ceil(settings.gpu.termination_s),
        "containers": [container],
    }
    if gpu_types:
        term = {"matchExpressions": [{"key": gpu_label, "operator": "In", "values": list(gpu_types)}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        pod["affinity"] = {"nodeAffinity": required}
    return pod
