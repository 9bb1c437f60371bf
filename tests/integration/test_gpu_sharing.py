"""`gpu.group_protocol` share: the lane partitions belong to nobody, each record to who has it for a while."""

import itertools

import pytest

from tests.support.gpu import wait_until
from topics import catalog

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # the broker notices a death after 8 s, and a lock lasts 15 s


def start(rig, **gpu):
    return rig.start(engine="simulated", group_protocol="share", share_lock_s=15, **gpu)


def spread(rig, works):
    """Put them on all partitions of all lanes in turn: the broker gives a member some of them, and not of each lane."""
    places = itertools.cycle(itertools.product(catalog.lanes(rig.settings, "default"), (0, 1)))
    for one, (lane, partition) in zip(works, places, strict=False):
        rig.put(one, lane=lane, partition=partition)


def all_answer(rig, *consumers):
    """Put requests until each consumer has answered; how many it took."""
    count = 0

    def has_answered():
        nonlocal count
        spread(rig, [rig.work(f"warm{count + n}", output_tokens=2) for n in range(16)])
        count += 16
        return all(consumer.metric("requests_total") for consumer in consumers)

    wait_until(has_answered, "all answer", consumers[0], limit_s=90)
    return count


def test_what_a_killed_consumer_held_is_answered_by_the_other_and_all_of_it_once(rig):
    first, second = (start(rig, speed=2, window_requests=4) for _ in range(2))
    warm = all_answer(rig, first, second)
    spread(rig, [rig.work(f"r{n}", output_tokens=300) for n in range(64)])
    wait_until(lambda: first.metric("inflight_requests"), "the first has some", first)
    first.kill()
    assert len(rig.wait_replies(64 + warm, limit_s=110)) == 64 + warm
    assert second.terminate() == 0
    assert len(rig.by_id()) == 64 + warm


def test_what_outlasts_its_lock_is_let_go_and_answered_once(rig):
    consumer = start(rig)
    warm = all_answer(rig, consumer)
    rig.put(rig.work("long", output_tokens=2000), partition=0)
    wait_until(lambda: "let_go" in consumer.log(), "it is let go", consumer, limit_s=60)
    rig.put(rig.work("short", output_tokens=5), partition=0)
    assert len(rig.wait_replies(warm + 2, limit_s=100)) == warm + 2
    assert len(rig.by_id()) == warm + 2
