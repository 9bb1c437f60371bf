"""Others that may size a pool in place of the target `kubernetes`: an HPA by the queue, or KEDA by our decisions."""

from autoscaler.settings import default_deployment
from rampmeter.manifests import pods
from rampmeter.manifests.pods import Data
from rampmeter.manifests.services import AUTOSCALER
from rampmeter.manifests.values import KEDA_PORT, Values

_POLL_S = 2
_DOWN_S = 60


def hpa(values: Values, pool: str) -> Data:
    """By unfinished requests for each consumer, read through an adapter of external metrics."""
    name = default_deployment(pool)
    metric = {"name": "inference_queue_length", "selector": {"matchLabels": {"pool": pool}}}
    target = {"type": "AverageValue", "averageValue": str(values.target_queue_length)}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": pods.metadata(name),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": values.min_replicas,
            "maxReplicas": values.max_replicas,
            "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 0},
                "scaleDown": {"stabilizationWindowSeconds": _DOWN_S, "policies": [_one_a_minute()]},
            },
        },
    }


def scaled_object(values: Values, pool: str) -> Data:
    """By what the autoscaler decided: its own bounds hold too, and its waits, so the HPA adds none."""
    name = default_deployment(pool)
    trigger = {
        "type": "external-push",
        "metadata": {"scalerAddress": f"{AUTOSCALER}.{values.namespace}:{KEDA_PORT}", "pool": pool},
    }
    behavior = {way: {"stabilizationWindowSeconds": 0} for way in ("scaleUp", "scaleDown")}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": pods.metadata(name),
        "spec": {
            "scaleTargetRef": {"name": name},
            "pollingInterval": _POLL_S,
            "cooldownPeriod": _DOWN_S,
            "minReplicaCount": 0,
            "maxReplicaCount": values.max_replicas,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
            "triggers": [trigger],
        },
    }


def scaler_service() -> Data:
    """Where KEDA finds the external scaler."""
    labels = pods.labels("autoscaler")
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": pods.metadata(AUTOSCALER, labels),
        "spec": {"selector": labels, "ports": [{"name": "keda", "port": KEDA_PORT, "targetPort": "keda"}]},
    }


def _one_a_minute() -> Data:
    return {"type": "Pods", "value": 1, "periodSeconds": 60}
