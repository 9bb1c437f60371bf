"""Topics and users as Strimzi keeps them: made from the catalogue, so that ACLs are what each process does."""

import re
from collections.abc import Iterable

from rampmeter.manifests.pods import Data
from rampmeter.manifests.values import NAME
from topics import catalog
from topics.catalog import Process, Topic
from topics.settings import Settings

API = "kafka.strimzi.io/v1"
_OURS: tuple[Process, ...] = ("streams", "gpu_consumers", "autoscaler", "rampmeter")
_IN_TRANSACTIONS = {"gpu_consumers"}


def resources(settings: Settings, cluster: str) -> Data:
    """A list of a KafkaTopic for each topic and a KafkaUser for each of our processes, for the Kafka `cluster`."""
    found = catalog.topics(settings)
    items = [_topic(each, settings, cluster) for each in found]
    return {"apiVersion": "v1", "kind": "List", "items": [*items, *(_user(p, found, settings, cluster) for p in _OURS)]}


def _topic(topic: Topic, settings: Settings, cluster: str) -> Data:
    spec = {
        "topicName": topic.name,
        "partitions": topic.partitions,
        "replicas": settings.topics.replication_factor,
        "config": topic.config,
    }
    return {"apiVersion": API, "kind": "KafkaTopic", "metadata": _metadata(topic.name, cluster), "spec": spec}


def _user(process: Process, topics: Iterable[Topic], settings: Settings, cluster: str) -> Data:
    """What it writes, reads and commits.  Whoever answers also looks for earlier answers."""
    acls: list[Data] = []
    for topic in topics:
        operations = ["Write"] * (process in topic.writers) + ["Read"] * reads(process, topic, settings)
        if operations:
            acls.append(_allow({"type": "topic", "name": topic.name, "patternType": "literal"}, *operations))
    acls += [
        _allow({"type": "topic", "name": name, "patternType": kind}, "Read", "Write")
        for name, kind in _reply_topics(settings)
        if process in {"streams", "gpu_consumers"}
    ]
    prefix = settings.topic(f"{NAME}-")
    acls.append(_allow({"type": "group", "name": prefix, "patternType": "prefix"}, "Read"))
    if process in _IN_TRANSACTIONS:
        acls.append(_allow({"type": "transactionalId", "name": prefix, "patternType": "prefix"}, "Write"))
    spec = {"authentication": {"type": "scram-sha-512"}, "authorization": {"type": "simple", "acls": acls}}
    return {
        "apiVersion": API,
        "kind": "KafkaUser",
        "metadata": _metadata(settings.topic(f"{NAME}-{process}"), cluster),
        "spec": spec,
    }


def reads(process: Process, topic: Topic, settings: Settings) -> bool:
    """By the catalogue; besides, promotion and the autoscaler look into lanes, and commands everywhere."""
    is_lane = topic.name in {lane for pool in settings.pools for lane in catalog.lanes(settings, pool)}
    return process in topic.readers or process == "rampmeter" or (is_lane and process in {"streams", "autoscaler"})


def _reply_topics(settings: Settings) -> list[tuple[str, str]]:
    return [
        (settings.topic(name.removesuffix("*")), "prefix" if name.endswith("*") else "literal")
        for name in settings.topics.reply_topics
    ]


def _allow(resource: Data, *operations: str) -> Data:
    return {"type": "allow", "resource": resource, "operations": [*operations, "Describe"], "host": "*"}


def _metadata(name: str, cluster: str) -> Data:
    dns = re.sub(r"[^a-z0-9.-]", "-", name.lower()).strip("-.")
    return {"name": dns, "labels": {"strimzi.io/cluster": cluster, "app.kubernetes.io/name": NAME}}
