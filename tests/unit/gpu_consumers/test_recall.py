import asyncio

import pytest

from gpu_consumers import lookup, recall
from gpu_consumers.assignment import Assignment, Entry, Fetched
from gpu_consumers.claims import Memory
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.selection import Lane
from gpu_consumers.recall import Recall
from gpu_consumers.settings import GpuSettings
from tests.support.builders import WALL_S, work
from topics.outcomes import Outcome
from topics.records import Length, Reply, Tier

WINDOW_S = 600.0


class FakeClaims:
    """Redis forgot what is not newer than `WALL_S`."""

    memory = Memory(1, is_lost=True)

    def may_have_forgotten(self, made_s):
        return made_s <= WALL_S


def entry(request_id, *, put_s=WALL_S, arrived_s=WALL_S, admitted_s=None, takeovers=0):
    where = Assignment("lane", 0, Lane(Tier.MEDIUM, Length.SHORT), OffsetTracker(None, [], window_records=9))
    made = work({"id": request_id, "arrived_s": arrived_s}, admitted_s=admitted_s)
    return Entry(Fetched(where, 0, b"", b"", put_s), made, Ask(1, 1, 1.0), takeovers=takeovers)


class Stage:
    def __init__(self, monkeypatch, *answered):
        self.asked, self.waiting, self.claims = [], [], FakeClaims()

        async def find(_settings, entries):
            self.asked.append([one.id for one in entries])
            return {i: Reply(id=i, outcome=Outcome.COMPLETED) for i in answered if i in self.asked[-1]}

        monkeypatch.setattr(lookup, "find", find)
        self.recall = Recall(GpuSettings(), self.claims, lambda: self.waiting)

    async def find(self, *entries):
        return sorted(await self.recall.find(list(entries)))


@pytest.mark.parametrize(
    ("times", "made_s"),
    [
        ({"put_s": WALL_S}, WALL_S),
        ({"put_s": WALL_S + 60, "admitted_s": WALL_S + 1}, WALL_S),  # an aged copy, or a retry
        ({"put_s": WALL_S, "arrived_s": WALL_S + 500}, WALL_S),
        ({"put_s": WALL_S, "arrived_s": 0}, WALL_S - WINDOW_S),
    ],
)
def test_work_is_as_old_as_its_request_within_the_window(times, made_s):
    assert recall.made_s(entry("a", **times), WINDOW_S) == made_s


@pytest.mark.asyncio
async def test_one_reading_serves_all_that_waits_and_may_be_forgotten(monkeypatch):
    stage = Stage(monkeypatch, "b", "c")
    a, b, c, new = entry("a"), entry("b"), entry("c"), entry("new", put_s=WALL_S + 9, arrived_s=WALL_S + 9)
    stage.waiting = [b, c, new]
    assert await stage.find(a) == []
    stage.waiting = [new]
    assert await stage.find(b, c) == ["b", "c"]
    assert stage.asked == [["a", "b", "c"]]
    assert b.since_s == WALL_S


@pytest.mark.asyncio
async def test_who_comes_during_a_reading_waits_for_it(monkeypatch):
    stage = Stage(monkeypatch, "b")
    a, b = entry("a"), entry("b")
    stage.waiting = [b]
    assert await asyncio.gather(stage.find(a), stage.find(b)) == [[], ["b"]]
    assert stage.asked == [["a", "b"]]


@pytest.mark.asyncio
async def test_another_loss_has_the_log_read_again(monkeypatch):
    stage = Stage(monkeypatch)
    a, b = entry("a"), entry("b")
    stage.waiting = [b]
    await stage.find(a)
    stage.claims.memory = Memory(2, is_lost=True)
    stage.waiting = []
    await stage.find(b)
    assert stage.asked == [["a", "b"], ["b"]]


@pytest.mark.asyncio
async def test_a_taken_over_id_is_always_looked_up_and_alone(monkeypatch):
    stage = Stage(monkeypatch, "a")
    a, b = entry("a"), entry("b")
    stage.waiting = [a, b]
    await stage.find(entry("first"))
    a.takeovers = 1
    stage.waiting = [b]
    assert await stage.find(a) == ["a"]
    assert stage.asked == [["first", "a", "b"], ["a"]]
