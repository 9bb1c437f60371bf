import pytest

from topics import clients
from topics.settings import Settings


@pytest.mark.parametrize(("wall_s", "expected_ms"), [(1.5, 1500), (0.0, 0), (-7.0, 0)])
def test_a_time_is_looked_up_in_the_milliseconds_of_the_broker_and_never_before_1970(wall_s, expected_ms):
    place = clients.at("lanes", 3, wall_s)
    assert (place.topic, place.partition, place.offset) == ("lanes", 3, expected_ms)


def test_a_producer_that_must_know_soon_does_not_go_by_the_sites_timeout(monkeypatch):
    monkeypatch.setattr(clients, "_made", lambda _kind, named: named)
    site = Settings(kafka={"delivery.timeout.ms": "60000"})
    assert clients.producer(site, delivered_within_s=1.5)["delivery.timeout.ms"] == 1500
    assert clients.producer(site)["delivery.timeout.ms"] == "60000"
    assert clients.producer(Settings())["delivery.timeout.ms"] == 120_000


def test_an_onlooker_soon_forgets_what_a_broker_that_came_back_said_of_topics(monkeypatch):
    monkeypatch.setattr(clients, "_made", lambda _kind, named: named)
    made = clients.onlooker(Settings(), "group")
    assert made["topic.metadata.refresh.interval.ms"] < made["metadata.max.age.ms"] <= 10_000


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
@pytest.mark.parametrize("site", [{}, {"max.poll.interval.ms": "30000"}, {"max.poll.interval.ms": "600000"}])
def test_each_kind_of_consumer_can_be_made_with_the_sites_poll_interval(protocol, site):
    clients.consumer(Settings(kafka=site), "group", group_protocol=protocol).close()
