from types import SimpleNamespace

import pytest
from faust.types import TP

from streams import metrics
from streams.progress import Progress
from tests.support.clock import FakeClock

LIMIT_S = 60.0
RECOVERY_LIMIT_S = 100.0
USAGE = TP("t.usage", 0)


class Ended(Exception):
    pass


def agent(*, ended=False):
    actor = SimpleNamespace(actor_task=SimpleNamespace(done=lambda: ended))
    return SimpleNamespace(_actors=[actor], channel=SimpleNamespace(topics=[USAGE.topic]))


class App:
    """As much of Faust as is watched."""

    def __init__(self):
        self.rebalancing, self.in_recovery, self.rebalancing_count = False, False, 1
        self.agents = {"usage": agent(), "low": agent()}
        self.tables, self.assignor = {"spend": None}, SimpleNamespace(assigned_actives=lambda: {USAGE})
        self.monitor = SimpleNamespace(tp_committed_offsets={}, tp_read_offsets={})

    def timer(self, _interval_s):
        def keep(beat):
            self.beat = beat

        return keep


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def progress(clock):
    return Progress(clock, LIMIT_S, RECOVERY_LIMIT_S)


@pytest.fixture
def app(progress, monkeypatch):
    def end(status):
        raise Ended(status)

    monkeypatch.setattr("os._exit", end)
    no_thread = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr("streams.progress.threading", SimpleNamespace(Thread=lambda **_: no_thread))
    made = App()
    progress.watch(made)
    return made


async def beats(app, clock, seconds):
    for _ in range(seconds):
        clock.advance(1)
        await app.beat()


@pytest.mark.asyncio
async def test_a_silent_loop_is_not_alive(progress, app, clock):
    await app.beat()
    clock.advance(16)
    assert "event loop" in progress.complaint()


def test_a_loop_that_has_not_begun_has_as_long_as_a_recovery_may_take(progress, clock):
    clock.advance(RECOVERY_LIMIT_S)
    assert progress.complaint() is None
    clock.advance(16)
    assert "event loop" in progress.complaint()


@pytest.mark.asyncio
async def test_an_agent_that_has_ended_is_named(progress, app, clock):
    app.agents["low"] = agent(ended=True)
    await beats(app, clock, 10)
    assert progress.complaint() is None, "Faust may start it again"
    await beats(app, clock, 2)
    assert "agent low ended" in progress.complaint()
    app.agents["low"] = agent()
    await beats(app, clock, 1)
    assert progress.complaint() is None


@pytest.mark.parametrize("state", ["rebalancing", "in_recovery"])
def test_a_recovery_that_does_not_end_ends_the_process(progress, app, clock, state):
    setattr(app, state, True)
    for _ in range(int(RECOVERY_LIMIT_S)):
        progress.look_at_recovery(app)
        clock.advance(1)
    clock.advance(1)
    with pytest.raises(Ended, match="69"):
        progress.look_at_recovery(app)


def test_a_leader_that_left_out_topics_which_it_did_not_know_ends_and_has_the_group_decide_again(progress, app, clock):
    app.assignor.unknown = frozenset({"usage"})
    for _ in range(11):
        progress.look_at_assignment(app)
        clock.advance(1)
    with pytest.raises(Ended, match="69"):
        progress.look_at_assignment(app)


@pytest.mark.parametrize("reason", ["another rebalance", "Kafka is away"])
def test_it_has_time_to_decide_again(progress, app, clock, reason):
    for _ in range(3):
        app.assignor.unknown = frozenset({"usage"})
        for _ in range(10):
            progress.look_at_assignment(app)
            clock.advance(1)
        if reason == "another rebalance":
            app.assignor.unknown = frozenset()
            progress.look_at_assignment(app)
        else:
            metrics.note("kafka", available=False)
            progress.look_at_assignment(app)
            metrics.note("kafka", available=True)


@pytest.mark.parametrize("reason", ["another rebalance", "it ended", "Kafka is away"])
def test_a_recovery_begins_anew(progress, app, clock, reason):
    app.in_recovery = True
    for _ in range(3):
        for _ in range(int(RECOVERY_LIMIT_S) - 1):
            progress.look_at_recovery(app)
            clock.advance(1)
        if reason == "another rebalance":
            app.rebalancing_count += 1
        elif reason == "it ended":
            app.in_recovery = False
            progress.look_at_recovery(app)
            app.in_recovery = True
        else:
            metrics.note("kafka", available=False)
            progress.look_at_recovery(app)
            metrics.note("kafka", available=True)


@pytest.mark.asyncio
async def test_batches_of_one_agent_may_overlap(progress, app, clock):
    with progress.batch("usage"):
        await beats(app, clock, 40)
        with progress.batch("usage"):
            pass
        await beats(app, clock, 21)
        assert "usage" in progress.complaint()
    assert progress.complaint() is None


@pytest.mark.asyncio
async def test_a_batch_may_take_its_time_but_not_for_ever(progress, app, clock):
    with progress.batch("usage"):
        await beats(app, clock, 59)
        assert progress.complaint() is None
        await beats(app, clock, 2)
        assert "usage" in progress.complaint()


@pytest.mark.asyncio
async def test_while_redis_is_away_a_waiting_batch_is_no_fault(progress, app, clock):
    metrics.note("redis", available=False)
    try:
        with progress.batch("usage"):
            await beats(app, clock, 200)
            assert progress.complaint() is None
    finally:
        metrics.note("redis", available=True)


@pytest.mark.asyncio
async def test_a_commit_that_never_comes_ends_the_process(app, clock):
    app.monitor.tp_committed_offsets[USAGE], app.monitor.tp_read_offsets[USAGE] = 5, 9
    with pytest.raises(Ended):
        await beats(app, clock, 30)


@pytest.mark.asyncio
@pytest.mark.parametrize("gone", ["to another worker", "for a rebalance"])
async def test_a_commit_of_a_partition_that_went_is_not_waited_for(app, clock, gone):
    app.monitor.tp_committed_offsets[USAGE], app.monitor.tp_read_offsets[USAGE] = 5, 9
    await beats(app, clock, 15)
    if gone == "to another worker":
        app.assignor.assigned_actives = set
    else:
        app.rebalancing = True
    await beats(app, clock, 30)
    app.assignor.assigned_actives, app.rebalancing = lambda: {USAGE}, False
    await beats(app, clock, 15)


@pytest.mark.asyncio
async def test_commits_that_move_or_wait_for_a_batch_do_not(progress, app, clock):
    app.monitor.tp_read_offsets[USAGE] = 99
    for committed in range(50):
        app.monitor.tp_committed_offsets[USAGE] = committed
        await beats(app, clock, 5)
    with progress.batch("usage"):
        await beats(app, clock, 50)
    app.monitor.tp_committed_offsets[USAGE] = 100
    await beats(app, clock, 50)


@pytest.mark.asyncio
@pytest.mark.parametrize("excuse", ["a batch in work", "redis away"])
async def test_what_excuses_the_process_is_shown_all_the_same(progress, app, clock, excuse):
    app.monitor.tp_committed_offsets[USAGE], app.monitor.tp_read_offsets[USAGE] = 5, 9
    metrics.note("redis", available=excuse != "redis away")
    try:
        with progress.batch("usage" if excuse == "a batch in work" else "low"):
            await beats(app, clock, 91)
        assert uncommitted_s() == 90
    finally:
        metrics.note("redis", available=True)
    app.monitor.tp_committed_offsets[USAGE] = 10
    await beats(app, clock, 1)
    assert uncommitted_s() == 0


def uncommitted_s():
    ((_, _, value, *_),) = metrics.UNCOMMITTED.collect()[0].samples
    return value
