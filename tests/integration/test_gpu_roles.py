"""Consumers of one length beside each other in one group, on a real broker."""

import pytest

from tests.support.gpu import wait_until
from topics.records import Length, Tier

LIMIT_S = 90.0
"""Of a change of hands: reports must age, reasons last, and the group rebalance, on a busy machine."""


def owned(rig, consumer, length):
    """Partitions of the lanes of this length that the consumer says it owns."""
    mine = [t for t in rig.telemetry() if t.consumer == consumer.name]
    lanes = mine[-1].lanes if mine else {}
    return sum(len(partitions) for topic, partitions in lanes.items() if topic.endswith(f".{length}"))


def wait_owned(rig, consumer, *, shorts, longs):
    def has():
        return (owned(rig, consumer, Length.SHORT), owned(rig, consumer, Length.LONG)) == (shorts, longs)

    wait_until(has, f"{consumer.name} owns {shorts} and {longs}", consumer, LIMIT_S)


@pytest.fixture
def start(rig):
    def start(role, **gpu):
        quick = {"borrow_after_s": 2, "borrow_apart_s": 4, "consumer_id": role}
        consumer = rig.start(role=role, **{**quick, **gpu})
        consumer.name = gpu.get("consumer_id", role)
        return consumer

    return start


@pytest.fixture
def all_of_a_length(rig):
    return 4 * rig.settings.pools["default"].lane_partitions


def in_lane(rig, tier, length, *ids, **fields):
    rig.put(*[rig.work(i, **fields) for i in ids], lane=rig.lane(tier, length))


def test_each_role_serves_its_lanes_and_the_shorts_owner_takes_over_those_of_a_dead_long_one(
    rig, start, all_of_a_length
):
    long, short = start("long"), start("short")
    wait_owned(rig, short, shorts=all_of_a_length, longs=0)
    wait_owned(rig, long, shorts=0, longs=all_of_a_length)
    for tier in Tier:
        for length in Length:
            in_lane(rig, tier, length, f"{tier}-{length}")
    for request_id, reply in rig.wait_replies(8).items():
        assert reply.consumer == request_id.split("-")[1]
    assert {t.consumer: t.role for t in rig.telemetry()} == {"short": "short", "long": "long"}
    long.kill()
    in_lane(rig, Tier.AGED, Length.LONG, "orphan")
    assert rig.wait_replies(9, limit_s=LIMIT_S)["orphan"].consumer == "short"
    wait_owned(rig, short, shorts=all_of_a_length, longs=all_of_a_length)
    assert "reason=unserved" in short.log()
    assert short.metric("served_lanes") == 8


@pytest.mark.slow
def test_an_idle_one_helps_and_lets_go_when_its_own_work_presses(rig, start, all_of_a_length):
    slow = {"engine": "simulated", "window_requests": 2, "speed": 4}
    short, long = start("short", **slow), start("long", **slow)
    wait_owned(rig, short, shorts=all_of_a_length, longs=0)
    in_lane(rig, Tier.MEDIUM, Length.LONG, *(f"l{n}" for n in range(60)), output_tokens=800)
    wait_until(lambda: any(r.consumer == "short" for r in rig.replies()), "it helps", short, LIMIT_S)
    assert "reason=has_room" in short.log()
    in_lane(rig, Tier.MEDIUM, Length.SHORT, *(f"s{n}" for n in range(400)), output_tokens=100)
    wait_owned(rig, short, shorts=all_of_a_length, longs=0)
    assert "reason=pressed" in short.log()
    wait_owned(rig, long, shorts=0, longs=all_of_a_length)


def test_a_fixed_split_leaves_lanes_alone_until_a_consumer_of_their_length_comes(rig, start, all_of_a_length):
    short = start("short", borrowing="none")
    wait_owned(rig, short, shorts=all_of_a_length, longs=0)
    in_lane(rig, Tier.HIGH, Length.LONG, "l")
    in_lane(rig, Tier.HIGH, Length.SHORT, "s")
    assert set(rig.wait_replies(1)) == {"s"}
    start("long", borrowing="none")
    assert rig.wait_replies(2)["l"].consumer == "long"
    assert "borrows" not in short.log()
