"""The GPU consumers as Kubernetes Deployments: what their settings ask of the nodes and of an end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.settings import default_deployment
from gpu_consumers.settings import GpuSettings
from rampmeter.manifests import pods
from rampmeter.manifests.pods import Data
from topics.records import Role

START_S = 900
"""A large model is read from a slow disk."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the consumers' nodes have."""

    gpu_label: str = "nvidia.com/gpu.product"
    """The nodes' label that names their GPU."""
    gpu_resource: str | None = "nvidia.com/gpu"
    """What is asked for, one of it; a MIG slice has a name of its own, as `nvidia.com/mig-1g.10gb`.  None: no GPU."""
    cpu: str = "4"
    memory: str = "16Gi"
    engine: str | None = None
    """None: as the settings say."""
    models_claim: str | None = None
    """PersistentVolumeClaim that is mounted at /models."""


def consumers(settings: GpuSettings, image: str, roles: Sequence[Role], machine: Machine) -> Data:
    """A list of one Deployment for each pool and role, without `replicas`: those are the autoscaler's.

    A consumer runs only on nodes whose label names one of its GPU types, and is killed only after it can have ended.
    """
    found = [of_role(settings, image, pool, role, machine) for pool in sorted(settings.pools) for role in roles]
    return {"apiVersion": "v1", "kind": "List", "items": found}


def of_role(settings: GpuSettings, image: str, pool: str, role: Role, machine: Machine) -> Data:
    """One of them."""
    labels = pods.labels("gpu-consumers", **{"rampmeter/pool": pool, "rampmeter/role": role.value})
    env = {"GPU__POOL": pool, "GPU__ROLE": role.value, **pods.STATUS_ENV}
    if machine.engine is not None:
        env["GPU__ENGINE"] = machine.engine
    asked = {"cpu": machine.cpu, "memory": machine.memory}
    container = pods.container(
        "consumer",
        image,
        ["python", "-m", "gpu_consumers"],
        env,
        **pods.served(START_S),
        resources={"requests": asked, "limits": {"memory": machine.memory} | _gpu(machine)},
        volumeMounts=[pods.TMP_MOUNT, *([_MODELS_MOUNT] if machine.models_claim else [])],
    )
    claim = {"claimName": machine.models_claim, "readOnly": True}
    volumes = [pods.TMP_VOLUME, *([{"name": "models", "persistentVolumeClaim": claim}] if machine.models_claim else [])]
    pod = pods.pod(
        container,
        labels,
        volumes=volumes,
        terminationGracePeriodSeconds=math.ceil(settings.gpu.termination_s),
        **_place(settings.pools[pool].gpu_types_of(role), machine),
    )
    return pods.deployment(default_deployment(pool, role), labels, pod)


_MODELS_MOUNT = {"name": "models", "mountPath": "/models", "readOnly": True}


def _gpu(machine: Machine) -> dict[str, str]:
    return {} if machine.gpu_resource is None else {machine.gpu_resource: "1"}


def _place(gpu_types: Sequence[str], machine: Machine) -> Data:
    found: Data = {}
    if machine.gpu_resource is not None:  # nodes with GPUs keep others away
        found["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    if gpu_types:
        term = {"matchExpressions": [{"key": machine.gpu_label, "operator": "In", "values": list(gpu_types)}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        found["affinity"] = {"nodeAffinity": required}
    return found
