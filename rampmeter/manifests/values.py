"""What a deployment chooses beside the settings.  The same values make the Kustomize files and the Helm chart."""

from dataclasses import dataclass

NAME = "rampmeter"
"""Of the ConfigMap and the Secret with the settings, and the first word of every other name."""
STATUS_PORT = 9100
KEDA_PORT = 9300
CONSOLE_PORT = 8081
TMP = "/tmp"  # noqa: S108 - the one place where a container may write


@dataclass(frozen=True, slots=True)
class Values:
    """Every field is also one of the Helm chart, by its name."""

    image: str = "rampmeter:0.1.0"
    consumer_image: str = "rampmeter-gpu:0.1.0"
    namespace: str = "rampmeter"
    kafka: str = "kafka-kafka-bootstrap.kafka:9092"
    """Bootstrap servers."""
    redis: str = "redis://redis:6379/0"
    streams_replicas: int | str = 2
    """At most `topics.landing_partitions` of them have work."""
    prometheus_namespace: str = "monitoring"
    """Who may read /metrics."""
    keda_namespace: str = "keda"
    proxy_namespace: str = "ingress-nginx"
    """Where the proxy with a login is that may reach the console."""
    gpu_resource: str = "nvidia.com/gpu"
    """What a consumer is given one of; a MIG slice has a name of its own, such as `nvidia.com/mig-1g.10gb`."""
    consumer_cpu: str = "4"
    consumer_memory: str = "16Gi"
    models_claim: str = "models"
    """PersistentVolumeClaim that holds the models, mounted at /models."""
    min_replicas: int | str = 2
    max_replicas: int | str = 10
    target_queue_length: int | str = 10
    """Of an HPA: unfinished requests for each consumer."""
