"""A reader that follows a topic from its beginning on."""

import pytest
from confluent_kafka.admin import NewPartitions, NewTopic

from autoscaler.following import Follower, Source
from tests.support.clock import FakeClock
from tests.support.streams_worker import send, steadily_written, wait_until
from topics import clients
from topics.errors import LagUnavailable

TIMEOUT_S = 10.0
SOON_S = 60.0


def follower(settings, partitions):
    return Follower(settings, FakeClock(), TIMEOUT_S, Source("fresh", partitions, 1e9, queued_kib=64))


@pytest.fixture
def admin(settings):
    return clients.admin(settings)


def succeeds(ask):
    try:
        ask()
    except LagUnavailable:
        return False
    return True


def read(following):
    """What came, and whether the topic was read to its end."""
    came = []
    try:
        for value in following.values():
            came.append(value)  # noqa: PERF402 - what came before the error counts
    except LagUnavailable:
        return came, False
    return came, True


def make(admin, settings, partitions):
    for done in admin.create_topics([NewTopic(settings.topic("fresh"), partitions, 1)]).values():
        done.result()


def test_a_topic_that_was_seen_while_it_was_made_is_found_once_it_is_whole(admin, settings):
    make(admin, settings, 1)
    with follower(settings, 2) as following:
        with pytest.raises(LagUnavailable, match="fresh"):
            following.begin()
        for done in admin.create_partitions([NewPartitions(settings.topic("fresh"), 2)]).values():
            done.result()
        topic = settings.topic("fresh")
        wait_until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == 2, SOON_S)
        send(settings, "fresh", [(b"a", None, [], 1)])
        wait_until(lambda: succeeds(following.begin), SOON_S)
        came = []

        def is_whole():
            some, at_end = read(following)
            came.extend(some)
            return at_end

        wait_until(is_whole, SOON_S)
        assert came == [b"a"]


def test_silence_and_an_outage_are_told_apart(admin, settings):
    make(admin, settings, 1)
    with follower(settings, 1) as following:
        wait_until(lambda: succeeds(following.begin), SOON_S)
        following.require_leader()
        wait_until(lambda: read(following) == ([], True), SOON_S)
        admin.delete_topics([settings.topic("fresh")])[settings.topic("fresh")].result()

        wait_until(lambda: not succeeds(following.require_leader), SOON_S)


def test_a_topic_to_which_many_write_without_a_pause_is_known_all_the_same(admin, settings):
    make(admin, settings, 1)
    with steadily_written(settings, "fresh", every_s=0.02) as writer, follower(settings, 1) as following:
        wait_until(lambda: succeeds(following.begin), SOON_S)
        wait_until(lambda: read(following)[1], SOON_S)
        assert writer.is_alive()
