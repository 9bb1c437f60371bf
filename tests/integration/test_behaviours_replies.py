"""Dead letters, outages and who waits for whom, by the numbers of `tests/unit/test_behaviours.py`."""

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.support.gpu import wait_until
from tests.support.services import GUARDED
from topics import clients
from topics.local_broker import LocalBroker
from topics.records import Tier


@pytest.fixture(scope="module")
def guarded_broker(tmp_path_factory):
    """A broker of this file alone, which can be stopped and can forbid topics."""
    with LocalBroker(tmp_path_factory.mktemp("guarded"), properties=GUARDED) as running:
        yield running


@pytest.fixture
def guarded(guarded_broker, rig_on):
    return rig_on(guarded_broker)


class Forbidden:
    """Nobody may write to this topic; a context."""

    def __init__(self, rig, name):
        self._admin, self._topic = clients.admin(rig.settings), rig.settings.topic(name)
        self._place = (ResourceType.TOPIC, self._topic, ResourcePatternType.LITERAL)

    def __enter__(self):
        denied = AclBinding(*self._place, "User:*", "*", AclOperation.WRITE, AclPermissionType.DENY)
        allowed = AclBinding(*self._place, "User:*", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        for done in self._admin.create_acls([allowed, denied]).values():
            done.result()

    def __exit__(self, *_):
        every = AclBindingFilter(*self._place, None, None, AclOperation.ANY, AclPermissionType.ANY)
        for done in self._admin.delete_acls([every]).values():
            done.result()


def committed(rig, count, consumer):
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == count, f"{count} are committed", consumer)


@pytest.mark.behaviour(19)
def test_while_the_dead_letters_cannot_be_written_nothing_is_committed_and_after_it_nothing_is_lost(guarded):
    consumer = guarded.start().wait_ready()
    with Forbidden(guarded, "dead_letters"):
        guarded.put_bytes(b"no json", "bad", partition=0)
        guarded.put(guarded.work("good"), partition=0)
        guarded.wait_replies(1)
        wait_until(lambda: (found := guarded.committed()) and found[0].metadata, "the good one is in the map", consumer)
        assert guarded.committed()[0].offset == 0
    wait_until(lambda: len(guarded.dead_letters()) == 1, "the dead letter is written", consumer)
    committed(guarded, 2, consumer)
    assert (guarded.dead_letters()[0].topic, guarded.dead_letters()[0].offset) == (guarded.lane(), 0)


@pytest.mark.behaviour(12)
def test_while_the_coordinator_is_away_what_is_under_way_is_bounded_and_afterwards_nothing_is_lost(
    guarded, guarded_broker
):
    bounds = {"window_requests": 4, "unsettled_requests": 8, "buffer_records": 16, "poll_records": 8}
    consumer = guarded.start(engine="simulated", speed=5, **bounds).wait_ready()
    ids = [f"r{n}" for n in range(300)]
    guarded.put(*(guarded.work(request_id, output_tokens=50) for request_id in ids))
    guarded.wait_replies(20)
    guarded_broker.stop()
    wait_until(lambda: consumer.metric("settling_requests") >= 8, "answers wait for the broker", consumer)
    wait_until(lambda: consumer.metric("inflight_requests") == 0, "nothing more begins", consumer)
    assert consumer.metric("settling_requests") <= 8 + 4
    assert consumer.metric("queued_requests") <= 2 * (16 + 8)
    guarded_broker.start()
    assert sorted(guarded.wait_replies(300, limit_s=90)) == sorted(ids)
    committed(guarded, 300, consumer)


@pytest.mark.behaviour(17)
def test_a_backlog_on_one_lane_lets_at_most_a_window_of_its_own_start_before_what_comes_on_another(rig):
    consumer = rig.start(engine="simulated", window_requests=4).wait_ready()
    for n in range(400):
        rig.put(rig.work(f"low{n}", output_tokens=60), lane=rig.lane(Tier.LOW))
    wait_until(lambda: consumer.metric("inflight_requests") == 4, "the window is full", consumer)
    for n in range(8):
        rig.put(rig.work(f"high{n}", output_tokens=5), lane=rig.lane(Tier.HIGH))
        wait_until(lambda n=n: f"high{n}" in rig.by_id(), "it is answered", consumer)
    replies = rig.by_id()
    assert len(replies) < 400
    for high in (replies[f"high{n}"] for n in range(8)):
        lows = [reply.timing.started_s for reply in replies.values() if reply.id.startswith("low")]
        assert sum(high.timing.arrived_s < started_s < high.timing.started_s for started_s in lows) <= 8
