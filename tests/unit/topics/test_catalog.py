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
    words = ("replies", "usage", "decisions", "dead_letters", "telemetry", "balances", "estimates", "control")
    fixed = {f"p.{name}" for name in words}
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


def test_each_tenant_of_the_settings_has_landing_topics_of_its_own_with_as_many_partitions():
    settings = made(prefix="p.", tenants=("acme", "a.b"), landing_partitions=3)
    counts = {topic.name: topic.partitions for topic in catalog.topics(settings)}
    own = {f"p.requests.{t}.{p}.{n}" for t in ("acme", "a.b") for p in Priority for n in Length}
    assert {counts[name] for name in own} == {3}
    assert len([name for name in counts if ".requests." in name]) == 6 + len(own)


def test_a_landing_topic_says_whose_it_is():
    settings = made(tenants=("acme",))
    spots = {spot.topic: spot for spot in catalog.landings(settings)}
    assert len(spots) == 12
    assert spots["requests.acme.low.long"] == catalog.Landing("requests.acme.low.long", "low", "long", "acme")
    assert spots["requests.low.long"].tenant is None
    assert {catalog.landing(settings, s.priority, s.length, s.tenant) for s in spots.values()} == {*spots}


@pytest.mark.parametrize("tenant", ["", "a b", "a/b", "x" * 129, "a\n"])
def test_a_tenant_that_can_be_no_part_of_a_topic_is_refused(tenant):
    with pytest.raises(ValueError, match="tenants"):
        Topics(tenants=(tenant,))


@pytest.mark.parametrize("name", ["control", "deferred.1s", "deferred.30s", "retries.1s", "retries.10s"])
def test_orders_and_delays_hold_from_when_the_broker_took_them(name):
    by_name = {topic.name: topic for topic in catalog.topics(made())}
    assert by_name[name].config["message.timestamp.type"] == "LogAppendTime"


def test_the_broker_and_not_the_sender_says_when_a_request_arrived():
    by_name = {topic.name: topic for topic in catalog.topics(made(tenants=("acme",)))}
    for spot in catalog.landings(made(tenants=("acme",))):
        assert by_name[spot.topic].config["message.timestamp.type"] == "LogAppendTime"
