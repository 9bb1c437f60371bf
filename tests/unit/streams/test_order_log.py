from types import SimpleNamespace

import pytest

from streams import order_log
from streams.order_log import OrderLog
from streams.policy.control import Event
from streams.settings import StreamsSettings
from tests.support.clock import FakeClock
from topics.records import Control, ControlAction, ControlKind

SETTINGS = StreamsSettings()


class Group:
    """The committed offset of the group that nobody joins."""

    def __init__(self, offset=-1001):
        self.offset, self.commits = offset, []

    def committed(self, _places, timeout):
        return [SimpleNamespace(offset=self.offset)]

    def commit(self, offsets, asynchronous):
        self.offset = offsets[0].offset
        self.commits.append(self.offset)


class Site:
    def __init__(self):
        self.clock, self.group, self.leads = FakeClock(), Group(), True
        self.log = OrderLog(SETTINGS, self.clock, lambda: self.leads)

    def order(self, offset, action=ControlAction.PAUSE, fate="applied", age_s=0.0):
        given = Control(id=f"o{offset}", action=action, kind=ControlKind.TENANT, name="acme", at_s=0.0, by="me")
        self.log.note(Event(f"key{offset}", given, self.clock.wall_s() - age_s, offset), fate)

    def take(self):
        """One turn of the event loop after one of the thread."""
        self.log.step(self.group)
        return [taken.id for taken in self.log.take_orders()]


@pytest.fixture
def site():
    made = Site()
    made.log.take_orders()  # the event loop tells who leads
    return made


def test_an_order_is_committed_only_after_the_next_take_says_that_it_was_sent(site):
    site.order(4)
    assert site.take() == ["o4"]
    site.log.step(site.group)
    assert site.group.commits == []
    assert site.take() == []
    site.log.step(site.group)
    assert site.group.commits == [5]


def test_what_was_recorded_before_is_not_offered_again(site):
    site.group.offset = 2
    for offset in range(4):
        site.order(offset)
    assert site.take() == ["o2", "o3"]


def test_what_changed_nothing_or_is_older_than_the_decision_log_is_not_recorded(site):
    site.order(0, fate="repeated")
    site.order(1, age_s=SETTINGS.topics.retention_s + 1)
    site.order(2)
    assert site.take() == ["o2"]


def test_a_worker_that_does_not_lead_takes_nothing_and_goes_on_where_the_leader_ended_when_it_does(site):
    site.leads = False
    for offset in range(3):
        site.order(offset)
    assert (site.take(), site.take()) == ([], [])
    site.leads, site.group.offset = True, 2
    site.log.take_orders()
    assert site.take() == ["o2"]


def test_one_take_is_bounded_and_the_rest_follows(site, monkeypatch):
    monkeypatch.setattr(order_log, "MAX_TAKEN", 2)
    for offset in range(3):
        site.order(offset)
    assert (site.take(), site.take()) == (["o0", "o1"], ["o2"])


def test_only_the_leader_has_the_keys_of_old_cancellations_forgotten(site):
    site.order(0, ControlAction.CANCEL)
    site.clock.advance(SETTINGS.dedupe_window_s + 1)
    site.take()
    site.leads = False
    assert site.log.take_tombstones() == []
    site.leads = True
    assert (site.log.take_tombstones(), site.log.take_tombstones()) == ([b"key0"], [])


def test_a_key_that_holds_another_order_by_now_is_not_forgotten(site):
    site.order(0, ControlAction.CANCEL)
    site.log.note(Event("key0", None, site.clock.wall_s(), 1), "repeated")
    site.clock.advance(SETTINGS.dedupe_window_s + 1)
    site.take()
    assert site.log.take_tombstones() == []
