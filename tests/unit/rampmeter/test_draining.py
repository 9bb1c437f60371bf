"""Whom an order to drain is about, and who is done with it."""

import pytest

from rampmeter import draining
from topics.settings import Settings
from topics.telemetry import Telemetry

NOW_S = 100.0


def known(*reports):
    return {one.consumer: one for one in reports}


def told(consumer, pool="default", *, at_s=NOW_S, state="ready", **fields):
    return Telemetry(consumer=consumer, pool=pool, state=state, at_s=at_s, **fields)


FLEET = known(told("b"), told("a"), told("dead", at_s=NOW_S - 60), told("gone", state="gone"), told("c", "cpu"))


def test_a_pool_is_its_live_consumers_and_any_other_name_a_consumer():
    assert draining.targets(Settings(), "default", FLEET, NOW_S) == ["a", "b"]
    assert draining.targets(Settings(), "c", FLEET, NOW_S) == ["c"]
    same = known(told("cpu", "default"), told("x", "cpu"))
    assert draining.targets(Settings(), "cpu", same, NOW_S) == ["x"], "a pool's name comes first"


@pytest.mark.parametrize(("name", "fleet"), [("dead", FLEET), ("nobody", FLEET), ("cpu", known(told("a")))])
def test_where_nobody_is_there_is_nothing_to_drain(name, fleet):
    with pytest.raises(draining.NoConsumer, match=name):
        draining.targets(Settings(), name, fleet, NOW_S)


@pytest.mark.parametrize(
    ("report", "left"),
    [
        (told("a"), {"a": 0}),
        (told("a", state="draining", inflight_requests=3), {"a": 3}),
        (told("a", state="draining", lanes={"l": [1]}), {"a": 0}),
        (told("a", state="draining"), {}),
        (told("a", state="gone"), {}),
        (told("a", at_s=NOW_S - 60, inflight_requests=3), {}),
    ],
)
def test_one_is_drained_when_it_has_no_lane_and_runs_nothing_or_is_not_there(report, left):
    assert draining.busy(["a", "never-seen"], known(report), NOW_S) == left
