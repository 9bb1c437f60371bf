"""Work that cannot finish before its partition goes: finished here, or begun anew by the next owner."""

import pytest

from tests.support.gpu import wait_until
from topics.records import Length


def put_longs(rig, output_tokens):
    lane = rig.lane(length=Length.LONG)
    for partition in (0, 1):
        rig.put(rig.work(f"r{partition}", output_tokens=output_tokens), lane=lane, partition=partition)
    return lane


def whole_usages(rig):
    return sorted(usage.id for usage in rig.usages() if not usage.partial)


def all_committed(rig, lane, count, consumer):
    wait_until(lambda: sum(tp.offset for tp in rig.committed(lane).values()) == count, "all is committed", consumer)


@pytest.mark.parametrize(
    ("on_revoke", "output_tokens", "answered_by", "delivery"),
    [
        ("finish", 2000, ["first", "first"], "at_least_once"),
        pytest.param("abort", 3000, ["first", "second"], "at_least_once", marks=pytest.mark.slow),
        pytest.param("abort", 4000, ["first", "second"], "transactional", marks=pytest.mark.slow),
    ],
)
def test_a_long_request_whose_partition_goes_is_answered_and_charged_once(
    rig, on_revoke, output_tokens, answered_by, delivery
):
    lane = put_longs(rig, output_tokens)
    # The lease is far longer than the test: whoever gets a claim before its end was given it.
    lasting = {"engine": "simulated", "on_revoke": on_revoke, "lease_s": 60, "drain_deadline_s": 0.5}
    lasting["delivery"] = delivery
    first = rig.start(**lasting, consumer_id="first")
    wait_until(lambda: first.metric("inflight_requests") == 2, "both run", first)
    second = rig.start(**lasting, consumer_id="second", speed=50)
    replies = rig.wait_replies(2, limit_s=90)
    all_committed(rig, lane, 2, second)
    assert sorted(reply.consumer for reply in replies.values()) == answered_by
    wait_until(lambda: len(whole_usages(rig)) == 2, "their use", second)
    cut_off = [usage for usage in rig.usages() if usage.partial]
    assert len(cut_off) == (on_revoke == "abort")
    assert all(0 < usage.tokens.output < output_tokens and usage.consumer == "first" for usage in cut_off)
    assert first.terminate() == 0
    assert second.terminate() == 0
    assert sorted(rig.by_id()) == whole_usages(rig) == ["r0", "r1"]
