"""Topics and users as Strimzi keeps them: made from the catalogue, so that ACLs are what each process does."""

import re
from collections.abc import Collection, Iterable

from rampmeter.manifests.pods import Data
from rampmeter.manifests.values import NAME
from topics import acls, catalog
from topics.acls import Acl
from topics.catalog import Process, Topic
from topics.settings import Settings

API = "kafka.strimzi.io/v1"
_TYPES = {"topic": "topic", "group": "group", "transactional-id": "transactionalId"}


def resources(settings: Settings, cluster: str, reply_patterns: Collection[str] = ()) -> Data:
    """A list of a KafkaTopic for each topic and a KafkaUser for each of our processes, for the Kafka `cluster`.

    `reply_patterns` as in `topics.acls`.
    """
    lines = acls.needed(settings, reply_patterns)
    items = [_topic(each, settings, cluster) for each in catalog.topics(settings)]
    users = [_user(process, lines, settings, cluster) for process in acls.PROCESSES if process != "upstream"]
    return {"apiVersion": "v1", "kind": "List", "items": [*items, *users]}


def _topic(topic: Topic, settings: Settings, cluster: str) -> Data:
    spec = {
        "topicName": topic.name,
        "partitions": topic.partitions,
        "replicas": settings.topics.replication_factor,
        "config": topic.config,
    }
    return {"apiVersion": API, "kind": "KafkaTopic", "metadata": _metadata(topic.name, cluster), "spec": spec}


def _user(process: Process, lines: Iterable[Acl], settings: Settings, cluster: str) -> Data:
    allowed = [_allow(line) for line in lines if line.process == process]
    spec = {
        "authentication": {"type": "scram-sha-512"},
        "authorization": {"type": "simple", "acls": allowed},
    }
    return {
        "apiVersion": API,
        "kind": "KafkaUser",
        "metadata": _metadata(settings.topic(f"{NAME}-{process}"), cluster),
        "spec": spec,
    }


def _allow(line: Acl) -> Data:
    resource = {
        "type": _TYPES[line.resource],
        "name": line.name,
        "patternType": "prefix" if line.is_prefix else "literal",
    }
    words = ["".join(word.capitalize() for word in operation.split("_")) for operation in line.operations]
    return {"type": "allow", "resource": resource, "operations": words, "host": "*"}


def _metadata(name: str, cluster: str) -> Data:
    dns = re.sub(r"[^a-z0-9.-]", "-", name.lower()).strip("-.")
    return {"name": dns, "labels": {"strimzi.io/cluster": cluster, "app.kubernetes.io/name": NAME}}
