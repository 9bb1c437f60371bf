"""Strimzi's topics and users, from the catalogue."""

import json
import re

import pytest

from rampmeter.manifests import strimzi
from topics import catalog
from topics.settings import Settings, Topics

SETTINGS = Settings(topics=Topics(prefix="prod.", replication_factor=3, tenants=("Acme_1",)))
ITEMS = strimzi.resources(SETTINGS, "kafka")["items"]
TOPICS = {each["spec"]["topicName"]: each for each in ITEMS if each["kind"] == "KafkaTopic"}
USERS = {
    each["metadata"]["name"]: each["spec"]["authorization"]["acls"] for each in ITEMS if each["kind"] == "KafkaUser"
}


NAMES = {topic.name for topic in catalog.topics(SETTINGS)}


def may(user, operation):
    """The topics of the catalogue with which a user may do this."""
    rules = [
        rule["resource"]
        for rule in USERS[f"prod.rampmeter-{user}"]
        if operation in rule["operations"] and rule["resource"]["type"] == "topic"
    ]
    exact = {rule["name"] for rule in rules if rule["patternType"] == "literal"}
    prefixes = tuple(rule["name"] for rule in rules if rule["patternType"] == "prefix")
    return {name for name in NAMES if name in exact or (prefixes and name.startswith(prefixes))}


def test_every_topic_is_there_as_the_catalogue_has_it():
    for topic in catalog.topics(SETTINGS):
        spec = TOPICS.pop(topic.name)["spec"]
        assert (spec["partitions"], spec["replicas"], spec["config"]) == (topic.partitions, 3, topic.config)
    assert TOPICS == {}


def test_names_are_ones_that_kubernetes_takes_and_no_two_are_the_same():
    names = [(each["kind"], each["metadata"]["name"]) for each in ITEMS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name) for _, name in names)
    assert all(each["metadata"]["labels"]["strimzi.io/cluster"] == "kafka" for each in ITEMS)


@pytest.mark.parametrize("process", ["streams", "gpu_consumers", "autoscaler", "rampmeter"])
def test_a_user_writes_what_its_process_writes(process):
    written = {topic.name for topic in catalog.topics(SETTINGS) if process in topic.writers}
    assert may(process.replace("_", "-"), "Write") == written


def test_who_starts_only_when_all_topics_are_right_may_look_at_all_of_them():
    for user in ("streams", "gpu-consumers", "autoscaler", "rampmeter"):
        assert may(user, "Describe") == NAMES


def test_only_admission_reads_requests_beside_the_commands():
    landing = "prod.requests.high.short"
    assert {user for user in ("streams", "gpu-consumers", "autoscaler") if landing in may(user, "Read")} == {"streams"}
    assert may("autoscaler", "Write") == {"prod.decisions", "prod.control"}
    transacting = {user for user, rules in USERS.items() if "transactionalId" in str(rules)}
    assert transacting == {"prod.rampmeter-gpu-consumers"}


def test_the_command_prints_it(capsys, monkeypatch):
    from rampmeter.cli import app

    monkeypatch.setenv("RAMPMETER_TOPICS__PREFIX", "prod.")
    app(["topics", "export", "--cluster", "main"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert {each["metadata"]["labels"]["strimzi.io/cluster"] for each in found["items"]} == {"main"}
