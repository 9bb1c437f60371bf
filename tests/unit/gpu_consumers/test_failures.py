import asyncio

import pytest
from prometheus_client import CollectorRegistry

from gpu_consumers.assignment import Assignment, Entry, Fetched
from gpu_consumers.claims import ClaimsUnavailable
from gpu_consumers.failures import GATHER_S, Failures
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.metrics import Metrics
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.parts import Parts
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.selection import Lane
from gpu_consumers.settings import Gpu, GpuSettings
from tests.support.builders import WALL_S, work
from tests.support.clock import FakeClock
from topics.errors import EngineError
from topics.records import Length, Tier

BROKEN = EngineError("the server broke off", retryable=True)


class Stage:
    """Failures between a runner and a buffer that only note what they are told."""

    def __init__(self, **gpu):
        self.clock, self.away, self.calls = FakeClock(), 0, []
        self.charged, self.spared, self.back = [], [], []
        settings = GpuSettings(gpu=Gpu(redis_retry_s=0.001, **gpu))
        inbox, orders = Mailbox(lambda: None), Mailbox(lambda: None)
        metrics = Metrics(CollectorRegistry())
        parts = Parts(settings, inbox, orders, self, None, self, self.clock, metrics)
        self.failures = Failures(parts, self._put_back)
        self._where = Assignment("lane", 0, Lane(Tier.HIGH, Length.SHORT), OffsetTracker(None, [], window_records=9))

    def charge(self, entry, _error):
        self.charged.append(entry.id)

    def spare(self, entry):
        self.spared.append(entry.id)

    async def release(self, ids):
        await self._give("release", ids)

    def let_lapse(self, ids):
        self.calls.append(("let_lapse", sorted(ids)))

    async def defer(self, ids):
        await self._give("defer", ids)

    async def _give(self, verb, ids):
        if self.away:
            self.away -= 1
            raise ClaimsUnavailable("ConnectionError")
        self.calls.append((verb, sorted(ids)))

    def _put_back(self, entries):
        self.back += entries
        for entry in entries:
            entry.buffered = True

    def running(self, *ids):
        made = [Entry(Fetched(self._where, 0, b"", b"", WALL_S), work({"id": i}), Ask(1, 1, 1.0)) for i in ids]
        for entry in made:
            entry.buffered, entry.has_seat = False, True
        return made

    async def fail(self, *entries):
        for entry in entries:
            entry.has_seat = False
            self.failures.broke(entry, BROKEN)
        self.clock.advance(GATHER_S)
        self.failures.look()
        await asyncio.gather(*self.failures.tasks)

    def may_run(self):
        return sorted({entry.id for entry in self.back if entry.buffered and self.failures.may_run(entry)})

    def begin(self, *ids):
        begun = [entry for entry in set(self.back) if entry.id in ids and entry.buffered]
        for entry in begun:
            entry.buffered, entry.has_seat = False, True
        return begun


@pytest.mark.asyncio
async def test_nothing_is_decided_before_it_is_clear_who_failed_together():
    stage = Stage()
    (entry,) = stage.running("a")
    stage.failures.broke(entry, BROKEN)
    stage.clock.advance(GATHER_S / 2)
    stage.failures.look()
    assert (stage.charged, stage.spared, stage.failures.tasks) == ([], [], set())
    stage.clock.advance(GATHER_S)
    stage.failures.look()
    assert (stage.charged, stage.back, stage.failures.stop()) == (["a"], [], [])


@pytest.mark.asyncio
async def test_those_who_failed_together_go_back_and_half_of_them_runs_until_it_is_gone():
    stage = Stage()
    await stage.fail(*stage.running("a", "b", "c", "d"))
    assert (stage.charged, stage.calls) == ([], [("release", ["a", "b", "c", "d"])])
    assert sorted(stage.spared) == ["a", "b", "c", "d"]
    assert stage.may_run() == ["a", "b"]
    for entry in stage.begin("a", "b"):
        assert stage.may_run() == []
        entry.has_seat = False
    stage.failures.look()
    assert stage.may_run() == ["c", "d"]
    await stage.fail(*stage.begin("c", "d"))
    assert stage.may_run() == ["c"]
    await stage.fail(*stage.begin("c"))
    assert stage.charged == ["c"]
    stage.failures.look()
    assert stage.may_run() == ["d"]


@pytest.mark.asyncio
async def test_one_that_failed_alone_is_known_when_it_comes_again():
    stage = Stage()
    await stage.fail(*stage.running("a"))
    again, other = stage.running("a", "b")
    stage.failures.recognise(again)
    stage.failures.recognise(other)
    assert (again.is_suspect, other.is_suspect) == (True, False)


@pytest.mark.asyncio
async def test_what_waits_for_redis_is_still_suspected_and_its_claims_are_known():
    stage = Stage()
    stage.away = 3
    entries = stage.running("a", "b")
    entries[0].takeovers = 1
    for entry in entries:
        entry.has_seat = False
        stage.failures.broke(entry, BROKEN)
    stage.clock.advance(GATHER_S)
    stage.failures.look()
    await asyncio.sleep(0)
    stage.failures.look()
    assert sorted(entry.id for entry in stage.failures.stop()) == ["a", "b"]
    await asyncio.gather(*stage.failures.tasks)
    assert stage.calls == [("defer", ["a"]), ("release", ["b"])]
    assert (stage.may_run(), stage.failures.stop()) == (["a"], [])


@pytest.mark.asyncio
async def test_where_work_goes_on_without_redis_nobody_who_goes_back_waits_for_it():
    stage = Stage(without_redis="run")
    stage.away = 99
    entries = stage.running("a", "b")
    entries[0].takeovers = 1
    await stage.fail(*entries)
    assert stage.calls == [("let_lapse", ["a"]), ("let_lapse", ["b"])]
    assert stage.may_run() == ["a"]


@pytest.mark.asyncio
async def test_at_the_end_those_who_were_not_judged_are_let_go_once_and_cost_nothing():
    stage = Stage()
    entries = stage.running("a", "b")
    for entry in entries:
        entry.assignment.inflight += 1
        stage.failures.broke(entry, BROKEN)
    assert stage.failures.stop() == entries
    assert (stage.failures.stop(), entries[0].assignment.inflight) == ([], 0)
    stage.clock.advance(GATHER_S)
    stage.failures.look()
    assert (stage.charged, stage.spared, stage.back) == ([], ["a", "b"], [])


@pytest.mark.asyncio
async def test_what_the_engine_did_not_take_goes_back_unsuspected():
    stage = Stage()
    (entry,) = stage.running("a")
    stage.failures.untried(entry)
    await asyncio.gather(*stage.failures.tasks)
    assert (stage.back, entry.is_suspect, stage.spared, stage.charged) == ([entry], False, [], [])


@pytest.mark.asyncio
async def test_a_suspect_whose_partition_left_holds_up_nobody():
    stage = Stage()
    await stage.fail(*stage.running("a", "b", "c", "d"))
    for entry in stage.begin("a", "b"):
        entry.has_seat = False  # as when its partition was released
    stage.failures.look()
    assert stage.may_run() == ["c", "d"]
