"""Streams workers, autoscaler, topics and settings."""

from rampmeter.manifests import pods
from rampmeter.manifests.pods import Data
from rampmeter.manifests.values import CONSOLE_PORT, KEDA_PORT, NAME, Values

_START_S = 120
_STREAMS_END_S = 60
_AUTOSCALER_END_S = 30
AUTOSCALER = f"{NAME}-autoscaler"
STREAMS = f"{NAME}-streams"
CONSOLE = f"{NAME}-console"


def settings(values: Values) -> Data:
    """What all processes are told; passwords belong into a Secret of the same name."""
    data = {
        "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": values.kafka,
        "RAMPMETER_REDIS__URL": values.redis,
        "RAMPMETER_TOPICS__REPLICATION_FACTOR": "3",
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": pods.metadata(NAME), "data": data}


def topics(values: Values) -> Data:
    """Creates what is missing before anything starts; what is there it leaves as it is."""
    labels = pods.labels("topics")
    container = pods.container("topics", values.image, ["rampmeter", "topics", "apply"], {"LOG_JSON": "true"})
    pod = pods.pod(container, labels, restartPolicy="OnFailure")
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": pods.metadata(f"{NAME}-topics", labels),
        "spec": {"backoffLimit": 20, "ttlSecondsAfterFinished": 600, "template": template},
    }


def streams(values: Values) -> Data:
    """The workers of admission; their table lies in memory and is read again from its changelog."""
    labels = pods.labels("streams")
    container = pods.container(
        "streams",
        values.image,
        ["python", "-m", "streams"],
        pods.STATUS_ENV,
        **pods.served(_START_S),
        resources={"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
    )
    pod = pods.pod(container, labels, terminationGracePeriodSeconds=_STREAMS_END_S)
    return pods.deployment(STREAMS, labels, pod, replicas=values.streams_replicas)


def autoscaler(values: Values, target: str = "kubernetes") -> Data:
    """One, since two would decide apart; the old one goes before the new one comes."""
    labels = pods.labels("autoscaler")
    env = {"AUTOSCALER__TARGET": target, **pods.STATUS_ENV}
    served = pods.served(_START_S)
    if target == "keda":
        env["AUTOSCALER__KEDA_ADDRESS"] = f"0.0.0.0:{KEDA_PORT}"
        served |= {"ports": [*_ports(served), {"name": "keda", "containerPort": KEDA_PORT}]}
    container = pods.container(
        "autoscaler",
        values.image,
        ["python", "-m", "autoscaler"],
        env,
        **served,
        resources={"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
    )
    calls_kubernetes = target == "kubernetes"
    identity: Data = {"serviceAccountName": AUTOSCALER} if calls_kubernetes else {}
    pod = pods.pod(
        container,
        labels,
        terminationGracePeriodSeconds=_AUTOSCALER_END_S,
        automountServiceAccountToken=calls_kubernetes,
        **identity,
    )
    return pods.deployment(AUTOSCALER, labels, pod, replicas=1, strategy={"type": "Recreate"})


def console(values: Values) -> list[Data]:
    """The web console and its address inside; read-only unless the Secret of the settings has a token."""
    labels = pods.labels("console")
    served = pods.served(_START_S)
    container = pods.container(
        "console",
        values.image,
        ["rampmeter", "console"],
        {"CONSOLE__HOST": "0.0.0.0", "CONSOLE__PORT": str(CONSOLE_PORT), **pods.STATUS_ENV},  # noqa: S104 - of a pod
        **{**served, "ports": [*_ports(served), {"name": "console", "containerPort": CONSOLE_PORT}]},
        resources={"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
    )
    ports = [{"name": "console", "port": CONSOLE_PORT, "targetPort": "console"}]
    service: Data = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": pods.metadata(CONSOLE, labels),
        "spec": {"type": "ClusterIP", "selector": labels, "ports": ports},
    }
    return [pods.deployment(CONSOLE, labels, pods.pod(container, labels), replicas=1), service]


def disruption_budget(component: str) -> Data:
    """One pod of the component at a time may be evicted: its work must find room at the others."""
    labels = pods.labels(component)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": pods.metadata(f"{NAME}-{component}", labels),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": labels},
        },
    }


def _ports(served: Data) -> list[object]:
    ports = served["ports"]
    return list(ports) if isinstance(ports, list) else []
