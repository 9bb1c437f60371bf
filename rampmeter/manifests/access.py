"""Who may do what: the autoscaler in the API of Kubernetes, pods on the network, monitoring on the status port."""

from autoscaler.cluster import RULES
from rampmeter.manifests import pods
from rampmeter.manifests.pods import Data
from rampmeter.manifests.services import AUTOSCALER, CONSOLE
from rampmeter.manifests.values import CONSOLE_PORT, KEDA_PORT, NAME, STATUS_PORT, Values

_OURS = {"app.kubernetes.io/name": NAME}
_DNS_PORT, _API_PORT, _API_POD_PORT = 53, 443, 6443
_KAFKA_PORTS = (9092, 9093)
_REDIS_PORT = 6379
_COLLECTOR_PORT = 4318


def role(values: Values) -> list[Data]:
    """What the target `kubernetes` calls, and nothing else."""
    rules = [{"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)} for rule in RULES]
    kind, group = "Role", "rbac.authorization.k8s.io"
    meta = pods.metadata(AUTOSCALER)
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, "automountServiceAccountToken": False},
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": kind, "name": AUTOSCALER},
            "subjects": [{"kind": "ServiceAccount", "name": AUTOSCALER, "namespace": values.namespace}],
        },
    ]


def network(values: Values) -> list[Data]:
    """In come readers of metrics, KEDA and the console's proxy; out go Kafka, Redis, a collector of traces and names.

    An engine's server needs its own rule.
    """
    everyone: Data = {"podSelector": {"matchLabels": _OURS}}
    out = [
        {"ports": [_port(_DNS_PORT), _port(_DNS_PORT, "UDP")]},
        {"ports": [_port(port) for port in (*_KAFKA_PORTS, _REDIS_PORT, _COLLECTOR_PORT)]},
    ]
    scraped = {"from": [_namespace(values.prometheus_namespace)], "ports": [_port(STATUS_PORT)]}
    asked = {"from": [_namespace(values.keda_namespace)], "ports": [_port(KEDA_PORT)]}
    sizing: Data = {"podSelector": {"matchLabels": pods.labels("autoscaler")}}
    looked_at = {"from": [_namespace(values.proxy_namespace)], "ports": [_port(CONSOLE_PORT)]}
    showing: Data = {"podSelector": {"matchLabels": pods.labels("console")}}
    to_api = {"ports": [_port(_API_PORT), _port(_API_POD_PORT)]}
    return [
        _policy(NAME, everyone, ingress=[scraped], egress=out),
        _policy(AUTOSCALER, sizing, ingress=[asked], egress=[to_api]),
        _policy(CONSOLE, showing, ingress=[looked_at], egress=[]),
    ]


def pod_monitor() -> Data:
    """Has Prometheus read every pod of ours."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": pods.metadata(NAME),
        "spec": {
            "selector": {"matchLabels": _OURS},
            "podMetricsEndpoints": [{"port": "status", "path": "/metrics", "interval": "5s"}],
        },
    }


def _policy(name: str, chosen: Data, **rules: object) -> Data:
    spec = {**chosen, "policyTypes": ["Ingress", "Egress"], **rules}
    meta = pods.metadata(name)
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": spec}


def _port(number: int, protocol: str = "TCP") -> Data:
    return {"protocol": protocol, "port": number}


def _namespace(name: str) -> Data:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
