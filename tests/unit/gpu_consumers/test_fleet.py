import pytest

from gpu_consumers import fleet
from gpu_consumers.fleet import STALE_S, Fleet
from gpu_consumers.policy.selection import Lane
from gpu_consumers.settings import Gpu, GpuSettings
from gpu_consumers.wiring import lanes
from tests.support.builders import WALL_S
from tests.support.clock import FakeClock
from topics.records import Length, Role, Tier
from topics.telemetry import Telemetry

SETTINGS = GpuSettings(gpu=Gpu(consumer_id="me"))


def told(consumer="other", state="ready", **fields):
    return Telemetry(**{"consumer": consumer, "pool": "default", "state": state, "at_s": WALL_S, **fields})


@pytest.fixture
def seen():
    made = Fleet(SETTINGS, lanes(SETTINGS), FakeClock())
    made.note(told("me"))
    return made


def test_nothing_is_known_until_its_own_report_comes_back_and_when_it_no_longer_does():
    clock = FakeClock()
    made = Fleet(SETTINGS, lanes(SETTINGS), clock)
    made.note(told())
    assert made.peers() is None
    made.note(told("me"))
    assert len(made.peers()) == 1
    clock.advance(STALE_S + 1)
    made.note(told())
    assert made.peers() is None


def test_a_peer_is_known_by_its_role_lanes_and_queue(seen):
    seen.note(told(role="long", queued_units=3.0, lanes={"lanes.default.low.long": [1], "lanes.old": [0]}))
    seen._clock.advance(1.0)
    (peer,) = seen.peers()
    assert (peer.role, peer.has_waiting, peer.known_s) == (Role.LONG, True, 1.0)
    assert peer.lanes == {Lane(Tier.LOW, Length.LONG): [1]}


@pytest.mark.parametrize("role", [None, "of a later version"])
def test_a_consumer_without_a_role_that_is_known_is_general(seen, role):
    seen.note(told(role=role))
    assert [peer.role for peer in seen.peers()] == [Role.GENERAL]


@pytest.mark.parametrize(
    ("fields", "takes_work"),
    [
        ({}, [True]),
        ({"state": "draining"}, [False]),
        ({"intake": "closed by memory"}, [False]),
        ({"state": "gone"}, []),
        ({"pool": "cpu"}, []),
    ],
    ids=str,
)
def test_peers_are_those_of_the_pool_that_are_still_there(seen, fields, takes_work):
    seen.note(told(**fields))
    assert [peer.takes_work for peer in seen.peers()] == takes_work


def test_who_fell_silent_is_no_peer_and_counts_anew_from_its_return(seen):
    seen.note(told())
    for _ in range(80):
        seen._clock.advance(1.0)
        seen.note(told("me"))
    assert seen.peers() == []
    seen.note(told("third"))
    seen.note(told())
    seen._clock.advance(1.0)
    assert {peer.known_s for peer in seen.peers()} == {1.0}


def test_consumers_are_remembered_up_to_a_bound(seen, monkeypatch):
    monkeypatch.setattr(fleet, "MAX_CONSUMERS", 3)
    for name in ("a", "b", "c", "d"):
        seen.note(told(name))
    assert len(seen.peers()) == 2
