from types import SimpleNamespace

import pytest

from gpu_consumers.borrowing import Borrower
from gpu_consumers.policy.roles import Peer
from gpu_consumers.policy.selection import LANES
from gpu_consumers.settings import Gpu, GpuSettings
from tests.support.clock import FakeClock
from topics.records import Length, Role

SHORTS, LONGS = (tuple(lane for lane in LANES if lane.length is length) for length in Length)


class Stage:
    """A consumer for shorts with as much own work as `demand` says; the others of its pool are `peers`."""

    def __init__(self, *peers):
        settings, self.clock = GpuSettings(gpu=Gpu(role="short")), FakeClock()
        self.peers, self.demand = list(peers), 0.0
        self.poller = SimpleNamespace(served=SHORTS)
        selector = SimpleNamespace(demand_ratio=lambda length: self.demand if length is Length.SHORT else 0.5)
        self.dispatcher = SimpleNamespace(selector=selector, takes_in=True, is_draining=False)
        fleet = SimpleNamespace(peers=lambda: self.peers)
        self.borrower = Borrower(settings, fleet, self.poller, self.dispatcher, self.clock)

    def look(self, for_s=60):
        for _ in range(for_s):
            self.clock.advance(1.0)
            self.borrower.look()
        return self.poller.served


def serving(*, has_waiting=False):
    return Peer(Role.LONG, dict.fromkeys(LONGS, (0, 1, 2, 3)), has_waiting, 60.0)


def test_the_subscription_follows_the_pool_and_its_own_work():
    stage = Stage()
    assert stage.look() == LANES
    stage.peers, stage.demand = [serving()], 1.0
    assert stage.look() == SHORTS


def test_one_that_takes_nothing_in_does_not_help_and_lets_go():
    stage = Stage(serving(has_waiting=True))
    stage.dispatcher.takes_in = False
    assert stage.look() == SHORTS
    stage.dispatcher.takes_in = True
    assert stage.look() == LANES
    stage.dispatcher.takes_in = False
    assert stage.look() == SHORTS


@pytest.mark.parametrize("peers", [(), (serving(has_waiting=True),)])
def test_one_that_is_leaving_changes_nothing(peers):
    stage = Stage(*peers)
    stage.dispatcher.is_draining = True
    assert stage.look() == SHORTS
