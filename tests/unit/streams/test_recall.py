"""When the decision log is asked about what the ledger may have forgotten, and what it says."""

import types

import pytest

from streams import recall
from streams.memory import Memory
from streams.recall import Recall, Told
from streams.settings import StreamsSettings
from tests.support.builders import WALL_S, usage
from tests.support.clock import FakeClock
from topics.records import Decision

pytestmark = pytest.mark.asyncio
SETTINGS = StreamsSettings(dedupe_window_s=600.0)
MEMORY = Memory(b"1", WALL_S)
AFTER_S = WALL_S + recall._SKEW_S + 1.0
"""Later than what a ledger that began at WALL_S may not know."""


def entry(stage="settlement", verdict="settled", at_s=1.0, **inputs):
    return Decision(id="r1", stage=stage, verdict=verdict, reason="none", at_s=at_s, by="w0", inputs=inputs)


class Log:
    """What a reading finds; counts the readings."""

    def __init__(self, monkeypatch, *entries):
        self.asked = []
        self.told = Told()
        for one in entries:
            self.told.note(one)
        monkeypatch.setattr(recall, "read", self.read)

    def read(self, settings, since_s):
        self.asked.append(since_s)
        return self.told


def made():
    clock = FakeClock(WALL_S)
    return Recall(SETTINGS, clock), clock


def case(arrived_s):
    """A record as admission asks about it."""
    ask = types.SimpleNamespace(origin=types.SimpleNamespace(place="t/0/1"))
    pending, told = types.SimpleNamespace(arrived_s=arrived_s), []
    return types.SimpleNamespace(id="r1", ask=ask, pending=pending, recalled=None, told=told, recall=told.append)


@pytest.mark.parametrize("finished_s", [WALL_S - 100, WALL_S + recall._SKEW_S])
async def test_what_ended_before_the_ledgers_memory_began_is_looked_up(monkeypatch, finished_s):
    Log(monkeypatch, entry())
    assert await made()[0].settled([usage(finished_s=finished_s)], MEMORY) == [True]


async def test_nothing_is_read_about_what_the_ledger_knows(monkeypatch):
    log = Log(monkeypatch, entry())
    assert await made()[0].settled([usage(finished_s=AFTER_S)], MEMORY) == [False]
    assert log.asked == []


async def test_while_it_is_unknown_what_the_ledger_has_what_is_older_than_the_partitions_is_looked_up(monkeypatch):
    log = Log(monkeypatch, entry("admission", "admit", at_s=2.0, origin="t/0/1", cost_units=5.0))
    found, clock = made()
    for expected in (0, 1):
        one = case(AFTER_S)
        await found.look_up([one], None)
        assert len(one.told) == expected
        clock.advance(60)
        found.partitions_came()
    assert len(log.asked) == 1


async def test_what_the_ledger_was_believed_to_know_is_looked_up_once_it_cannot_be_asked(monkeypatch):
    Log(monkeypatch, entry("admission", "reject", at_s=2.0, origin="t/0/1"))
    found, _ = made()
    one = case(WALL_S)
    await found.look_up([one], Memory(b"1", WALL_S - 60))
    assert not one.told
    await found.look_up([one], None)
    assert [told.state for told in one.told] == ["finished"]


async def test_one_reading_serves_until_the_partitions_change_or_it_was_not_used_for_long(monkeypatch):
    log = Log(monkeypatch)
    found, clock = made()
    for at_s in (WALL_S, WALL_S - 1, WALL_S - 2):
        await found.settled([usage(finished_s=at_s)], MEMORY)
    assert len(log.asked) == 1
    found.partitions_came()
    clock.advance(1)
    found.partitions_came()
    await found.settled([usage(finished_s=WALL_S)], MEMORY)
    assert len(log.asked) == 2
    clock.advance(2 * recall._KEPT_S)
    await found.settled([], MEMORY)
    await found.settled([usage(finished_s=WALL_S)], MEMORY)
    assert len(log.asked) == 3


async def test_no_more_is_read_than_the_ledger_would_remember(monkeypatch):
    log = Log(monkeypatch)
    await made()[0].settled([usage(finished_s=1.0)], MEMORY)
    assert log.asked == [WALL_S - 600 - recall._SKEW_S - recall._FURTHER_S]


async def test_a_charge_of_an_attempt_that_was_tried_again_is_not_that_of_the_next(monkeypatch):
    Log(monkeypatch, entry(partial=True, attempt=1))
    found, _ = made()
    usages = [usage(finished_s=WALL_S, partial=True, attempt=n) for n in (1, 2)]
    assert await found.settled([*usages, usage(finished_s=WALL_S, attempt=1)], MEMORY) == [True, False, False]


async def test_of_several_entries_of_a_record_the_first_says_what_was_taken():
    told = Told()
    told.note(entry("admission", "hold", origin="t/0/1", cost_units=1.0))
    told.note(entry("admission", "admit", at_s=2.0, origin="t/0/1", cost_units=5.0, degraded=True))
    told.note(entry("admission", "admit", at_s=3.0, origin="t/0/1", cost_units=7.0, again="reserved"))
    told.note(entry("admission", "reject", at_s=3.0, origin="t/0/2", cost_units=7.0))
    first, second = told.decided["r1", "t/0/1"], told.decided["r1", "t/0/2"]
    assert (first.is_admitted, first.at_s, first.cost_units, first.is_unreserved) == (True, 2.0, 5.0, True)
    assert not second.is_admitted
