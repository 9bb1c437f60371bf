from types import SimpleNamespace

import pytest
from faust.types import TP

from streams import metrics
from streams.progress import Progress
from tests.support.clock import FakeClock

LIMIT_S = 60.0
USAGE = TP("t.usage", 0)


class Ended(Exception):
    pass


class App:
    """As much of Faust as is watched."""

    def __init__(self):
        self.rebalancing = False
        self.assignor = SimpleNamespace(assigned_actives=lambda: {USAGE})
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
    return Progress(clock, LIMIT_S)


@pytest.fixture
def app(progress, monkeypatch):
    def end(status):
        raise Ended(status)

    monkeypatch.setattr("os._exit", end)
    made = App()
    progress.watch(made)
    return made


async def beats(app, clock, seconds):
    for _ in range(seconds):
        clock.advance(1)
        await app.beat()


def test_a_silent_loop_is_not_alive(progress, clock):
    clock.advance(16)
    assert "event loop" in progress.complaint()


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
async def test_commits_that_move_or_wait_for_a_batch_do_not(progress, app, clock):
    app.monitor.tp_read_offsets[USAGE] = 99
    for committed in range(50):
        app.monitor.tp_committed_offsets[USAGE] = committed
        await beats(app, clock, 5)
    with progress.batch("usage"):
        await beats(app, clock, 50)
    app.monitor.tp_committed_offsets[USAGE] = 100
    await beats(app, clock, 50)
