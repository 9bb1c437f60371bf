"""The other ways to be a member of the group, on a real broker."""

import re

import pytest

from tests.support.gpu import wait_until


def owned(consumer):
    return consumer.metric("owned_partitions") or 0


def share(rig, *consumers):
    """Wait until the lanes' partitions are all owned and everyone has some."""
    count = 8 * rig.settings.pools["default"].lane_partitions
    wait_until(
        lambda: min(map(owned, consumers)) > 0 and sum(map(owned, consumers)) == count, "all is assigned", consumers[0]
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_share_the_lanes_and_the_work_of_a_dead_one_is_done(rig, protocol, monkeypatch):
    if protocol == "classic":  # with KIP-848 it is the broker's
        monkeypatch.setenv("RAMPMETER_KAFKA__SESSION_TIMEOUT_MS", "6000")
    first, second = (rig.start(group_protocol=protocol) for _ in range(2))
    share(rig, first, second)
    first.kill()
    rig.put(*[rig.work(f"r{n}") for n in range(40)])
    assert len(rig.wait_replies(40)) == 40
    share(rig, second)


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(rig):
    first, second = rig.start(instance_id="gpu-a"), rig.start(instance_id="gpu-b")
    share(rig, first, second)
    before, rebalances = owned(first), second.metric("rebalances_total")
    assert first.terminate() == 0
    again = rig.start(instance_id="gpu-a")
    share(rig, again, second)
    assert owned(again) == before
    assert second.metric("rebalances_total") == rebalances
    rig.put(*[rig.work(f"r{n}") for n in range(40)])
    assert len(rig.wait_replies(40)) == 40


@pytest.mark.behaviour(30)
def test_a_second_process_with_the_same_instance_id_says_so(rig):
    first = rig.start(instance_id="gpu-a")
    share(rig, first)
    second = rig.start(instance_id="gpu-a")
    wait_until(lambda: first.process.poll() is not None or second.process.poll() is not None, "one of them ends")
    ended = first if first.process.poll() is not None else second
    assert ended.process.returncode != 0
    assert re.search(r"instance|fenced", ended.log(), re.IGNORECASE)
