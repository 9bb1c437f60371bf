"""What all pods of ours have in common: non-root on a read-only disk, probed on the status port, spread over nodes."""

from collections.abc import Mapping

from rampmeter.manifests.values import NAME, STATUS_PORT, TMP
from topics.settings import ENV_PREFIX

Data = dict[str, object]

USER = 10001
_SPREAD_OVER = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")


def labels(component: str, **more: str) -> dict[str, str]:
    """What selects the pods of a component."""
    return {"app.kubernetes.io/name": NAME, "app.kubernetes.io/component": component} | more


def metadata(name: str, labelled: Mapping[str, str] | None = None) -> Data:
    """A name in the namespace that the files are applied to."""
    return {"name": name, "labels": dict(labelled or {"app.kubernetes.io/name": NAME})}


def deployment(name: str, labelled: Mapping[str, str], pod: Data, **spec: object) -> Data:
    """A Deployment of this pod; without `replicas` in `spec` their number is another's to choose."""
    template = {"metadata": {"labels": dict(labelled)}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(name, labelled),
        "spec": {**spec, "selector": {"matchLabels": dict(labelled)}, "template": template},
    }


def pod(container: Data, labelled: Mapping[str, str], **spec: object) -> Data:
    """A pod of one container, that needs nothing of its node and, unless `spec` says so, nothing of Kubernetes."""
    return {
        "automountServiceAccountToken": False,
        # Else a Service rampmeter-x puts variables RAMPMETER_X_PORT into each pod, which look like settings.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": dict(labelled)},
            }
            for key in _SPREAD_OVER
        ],
        "volumes": [TMP_VOLUME],
        **spec,
        "containers": [container],
    }


def container(name: str, image: str, command: list[str], env: Mapping[str, str], **more: object) -> Data:
    """A container with our settings, and nothing that it could change."""
    return {
        "name": name,
        "image": image,
        "command": command,
        "env": [{"name": ENV_PREFIX + key, "value": value} for key, value in env.items()] + _HOME,
        "envFrom": [{"configMapRef": {"name": NAME}}, {"secretRef": {"name": NAME, "optional": True}}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [TMP_MOUNT],
        **more,
    }


def served(start_s: int) -> Data:
    """Status port and probes of a process that may take `start_s` until it answers."""
    live = {"httpGet": {"path": "/livez", "port": "status"}}
    return {
        "ports": [{"name": "status", "containerPort": STATUS_PORT}],
        "startupProbe": {**live, "periodSeconds": 5, "failureThreshold": -(-start_s // 5)},
        "livenessProbe": live,
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "status"}},
    }


STATUS_ENV = {"STATUS_HOST": "0.0.0.0", "STATUS_PORT": str(STATUS_PORT), "LOG_JSON": "true"}  # noqa: S104 - of a pod
_HOME = [{"name": "HOME", "value": TMP}]
TMP_VOLUME: Data = {"name": "tmp", "emptyDir": {}}
TMP_MOUNT: Data = {"name": "tmp", "mountPath": TMP}
