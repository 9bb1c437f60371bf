import pytest

from topics import catalog
from topics.records import Length, Priority, Tier
from topics.settings import Pool, Settings, Topics


def made(**topics):
    return Settings(topics=Topics(**topics), pools={"default": Pool(lane_partitions=3), "cpu": Pool()})


def test_names_are_those_of_the_design_with_the_prefix_in_front():
    names = {topic.name for topic in catalog.topics(made(prefix="p."))}
    landing = {f"p.requests.{p}.{n}" for p in ("high", "medium", "low") for n in ("short", "long")}
    lanes = {
        f"p.lanes.{pool}.{tier}.{n}"
        for pool in ("default", "cpu")
        for tier in ("high", "medium", "low", "aged")
        for n in ("short", "long")
    }
    fixed = {f"p.{name}" for name in ("replies", "usage", "decisions", "dead_letters", "telemetry")}
    delayed = {"p.deferred.1s", "p.deferred.5s", "p.deferred.30s", "p.retries.1s", "p.retries.10s"}
    assert names == landing | lanes | fixed | delayed | {"p.rampmeter-streams-spend-changelog"}


def test_no_name_is_there_twice():
    names = [topic.name for topic in catalog.topics(made())]
    assert len(names) == len(set(names))


def test_a_table_and_its_source_have_equally_many_partitions():
    by_name = {topic.name: topic for topic in catalog.topics(made(landing_partitions=7))}
    assert by_name["usage"].partitions == by_name["rampmeter-streams-spend-changelog"].partitions == 7


def test_lanes_have_the_partitions_of_their_pool():
    counts = {topic.name: topic.partitions for topic in catalog.topics(made())}
    assert {counts[name] for name in catalog.lanes(made(), "default")} == {3}
    assert {counts[name] for name in catalog.lanes(made(), "cpu")} == {4}


def test_the_functions_name_topics_of_the_catalogue():
    settings = made(prefix="p.")
    names = {topic.name for topic in catalog.topics(settings)}
    used = {catalog.landing(settings, p, n) for p in Priority for n in Length}
    used |= {catalog.lane(settings, "cpu", t, n) for t in Tier for n in Length}
    used |= {catalog.deferred(settings, s) for s in settings.topics.defer_delays_s}
    used |= {catalog.retries(settings, s) for s in settings.topics.retry_delays_s}
    used |= {settings.topic(catalog.default_reply_name(settings))}
    assert used <= names


def test_groups_carry_the_prefix():
    assert catalog.gpu_group(made(prefix="p."), "cpu") == "p.rampmeter-gpu-cpu"


@pytest.mark.parametrize("topic", catalog.topics(made()), ids=lambda topic: topic.name)
def test_each_topic_has_a_writer_a_reader_and_a_limit(topic):
    assert topic.writers
    assert topic.readers
    assert topic.compacted or int(topic.config["max.message.bytes"]) > made().topics.max_record_bytes
