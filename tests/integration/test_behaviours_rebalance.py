"""Partitions that come and go under running work, by the numbers of `tests/unit/test_behaviours.py`."""

import threading

import pytest

from tests.support.commit_log import Commits, taken_back
from tests.support.gpu import DEADLINE_S, wait_until
from tests.support.stalls import Watch
from topics import catalog, clients
from topics.records import Length


@pytest.fixture
def commits(rig):
    """The group's commits; at the end of the test none may have taken another of its partition back."""
    with Commits(rig.settings, catalog.gpu_group(rig.settings, "default")) as made:
        yield made
        for lane in catalog.lanes(rig.settings, "default"):
            for partition in range(rig.settings.pools["default"].lane_partitions):
                assert taken_back(made.of(lane, partition)) == []


class Guest:
    """A member that takes one partition of each lane and does nothing with it; a context.

    It polls all the while, since one that does not holds on to what the group wants back; and all of it in one thread,
    since a client that is asked from another one while it polls may not answer.
    """

    def __init__(self, rig):
        self._settings = rig.settings
        self._has_some, self._leaves = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._be_a_member)

    def __enter__(self):
        self._thread.start()
        if not self._has_some.wait(DEADLINE_S):
            self.__exit__()
            raise AssertionError("the guest got no partitions")
        return self

    def __exit__(self, *_):
        self._leaves.set()
        self._thread.join()

    def _be_a_member(self):
        group = catalog.gpu_group(self._settings, "default")
        client = clients.consumer(
            self._settings, group, group_protocol="consumer", group_remote_assignor="range", queued_min_messages=1
        )
        client.subscribe(catalog.lanes(self._settings, "default"))
        while not self._leaves.is_set():
            client.poll(0.1)
            if client.assignment():
                self._has_some.set()
        client.close()


def owns(consumer, count):
    wait_until(lambda: consumer.metric("owned_partitions") == count, f"it owns {count} partitions", consumer)


@pytest.mark.behaviour(7)
def test_of_twenty_that_run_while_another_joins_none_is_doubled_and_no_commit_is_taken_back(rig, commits):
    ids = [f"r{n}" for n in range(60)]
    first = rig.start(engine="simulated", window_requests=20, drain_deadline_s=0.1).wait_ready()
    rig.put(*(rig.work(request_id, output_tokens=400) for request_id in ids))
    wait_until(lambda: first.metric("inflight_requests") == 20, "twenty run", first)
    second = rig.start(engine="simulated", speed=4)
    assert sorted(rig.wait_replies(60)) == sorted(ids)
    wait_until(lambda: sum(tp.offset for tp in rig.committed().values()) == 60, "all is committed", second)
    assert second.metric("requests_total") > 0
    assert (first.terminate(), second.terminate()) == (0, 0)


@pytest.mark.behaviour(8)
def test_the_old_job_of_a_partition_that_came_back_commits_nothing_and_is_answered_once(rig, commits):
    lane = rig.lane(length=Length.LONG)
    for partition in (0, 1):
        rig.put(rig.work(f"old{partition}", output_tokens=40_000), lane=lane, partition=partition)
    consumer = rig.start(engine="simulated").wait_ready()
    wait_until(lambda: consumer.metric("inflight_requests") == 2, "both run", consumer)
    with Guest(rig):
        owns(consumer, 8)
    owns(consumer, 16)
    assert consumer.metric("inflight_requests") == 2
    for partition in (0, 1):
        rig.put(rig.work(f"new{partition}", output_tokens=1), lane=lane, partition=partition)
    assert sorted(rig.wait_replies(2)) == ["new0", "new1"]
    wait_until(
        lambda: all(found[-1:] and found[-1].is_finished(1) for found in (commits.of(lane, 0), commits.of(lane, 1))),
        "the new ones are committed",
        consumer,
    )
    assert {one.offset for partition in (0, 1) for one in commits.of(lane, partition)} == {0}
    for partition in (0, 1):
        rig.cancel(f"old{partition}")
    wait_until(lambda: sum(tp.offset for tp in rig.committed(lane).values()) == 4, "all is committed", consumer)
    assert sorted(rig.by_id()) == ["new0", "new1", "old0", "old1"]
    assert consumer.metric("claims_total", verdict="mine") == 4
    assert consumer.metric("claims_total", verdict="takeover") == 0


@pytest.mark.behaviour(14)
def test_a_partition_that_comes_back_while_all_are_paused_is_bounded_and_none_stays_paused(rig, commits):
    ids = [f"r{n}" for n in range(100)]
    for number, request_id in enumerate(ids):
        rig.put(rig.work(request_id, output_tokens=40), partition=number % 2)
    bounds = {"buffer_records": 4, "poll_records": 2, "window_requests": 2, "drain_deadline_s": 1}
    consumer = rig.start(engine="simulated", **bounds).wait_ready()
    wait_until(lambda: consumer.metric("paused_partitions") == 2, "both are paused", consumer)
    with Guest(rig):
        owns(consumer, 8)
        assert consumer.metric("paused_partitions") <= 1
    owns(consumer, 16)
    wait_until(lambda: consumer.metric("paused_partitions") == 2, "both are paused again", consumer)
    assert consumer.metric("queued_requests") <= 2 * (4 + 2)
    assert len(rig.by_id()) < 100
    assert sorted(rig.wait_replies(100, limit_s=90)) == sorted(ids)
    wait_until(lambda: consumer.metric("paused_partitions") == 0, "none stays paused", consumer)
    assert "log_reset" not in consumer.log()


@pytest.mark.behaviour(13)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cycles", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_while_members_come_and_go_nothing_is_lost_and_no_partition_stands_still(rig, commits, cycles):
    group, lanes = catalog.gpu_group(rig.settings, "default"), catalog.lanes(rig.settings, "default")
    soon = {"drain_deadline_s": 1, "delivery_s": 3}
    stays = rig.start(engine="simulated", **soon).wait_ready()
    sent = 0
    with Watch(rig.settings, {group: lanes}) as watch:
        for cycle in range(cycles):
            for lane in lanes:
                rig.put(*(rig.work(f"r{sent + n}", output_tokens=50) for n in range(5)), lane=lane)
                sent += 5
            comes = rig.start(engine="simulated", **soon)
            wait_until(lambda comes=comes: comes.metric("owned_partitions"), "it has partitions", comes)
            if cycle % 4 == 3:
                comes.kill()
            else:
                assert comes.terminate() == 0
        wait_until(lambda: len(rig.replies()) >= sent, "all are answered", stays)
        wait_until(lambda: sum(tp.offset for tp in all_committed(rig)) == sent, "all is committed", stays)
    assert watch.stalls.longest_s is not None
    assert watch.stalls.longest_s < 30, watch.stalls.where
    assert len(rig.by_id()) == sent


def all_committed(rig):
    return [tp for lane in catalog.lanes(rig.settings, "default") for tp in rig.committed(lane).values()]
