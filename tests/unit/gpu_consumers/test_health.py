from types import SimpleNamespace

import pytest

from gpu_consumers.health import Health
from gpu_consumers.settings import Gpu
from tests.support.clock import FakeClock


class Stage:
    def __init__(self, **gpu):
        self.clock = FakeClock()
        now_s = self.clock.mono_s()
        self.poller = SimpleNamespace(is_alive=True, turned_s=now_s, moved_s=now_s, owned=lambda: self.owned)
        self.buffers = SimpleNamespace(records=0)
        self.dispatcher = SimpleNamespace(buffers=self.buffers, moved_s=now_s, is_draining=False, takes_in=True)
        self.load = SimpleNamespace(closed=None)
        self.runner = SimpleNamespace(moved_s=now_s, load=self.load)
        self.settler = SimpleNamespace(open=0, moved_s=now_s)
        self.owned = [object()]
        self.claims = SimpleNamespace(available=True)
        self.broker = True
        outbox = SimpleNamespace(is_broker_there=lambda _timeout_s: self.broker)
        sources = SimpleNamespace(
            poller=self.poller, dispatcher=self.dispatcher, runner=self.runner, settler=self.settler
        )
        self.health = Health(Gpu(stall_s=30.0, drain_deadline_s=5.0, **gpu), sources, self.claims, outbox, self.clock)

    def pass_time(self, seconds):
        self.clock.advance(seconds)
        self.poller.turned_s = self.clock.mono_s()
        self.health.note()
        if self.health.is_suspicious():
            self.health.look()


def test_an_idle_process_lives():
    stage = Stage()
    stage.pass_time(1000)
    assert stage.health.live() is None


@pytest.mark.parametrize("where", ["buffers", "settler"])
def test_work_that_waits_while_nothing_moves_is_a_stall(where):
    stage = Stage()
    stage.pass_time(1000)
    setattr(getattr(stage, where), "records" if where == "buffers" else "open", 3)
    stage.pass_time(29)
    assert stage.health.live() is None
    stage.pass_time(2)
    assert stage.health.live() == "3 requests wait and nothing has moved for 31 s"


@pytest.mark.parametrize("who", ["Kafka", "Redis"])
def test_while_kafka_or_redis_is_away_nothing_stalls_and_after_it_came_back_the_time_starts_anew(who):
    stage = Stage()
    stage.buffers.records = 3

    def be_there(is_there):
        if who == "Kafka":
            stage.broker = is_there
        else:
            stage.claims.available = is_there

    be_there(False)
    for _ in range(300):
        stage.pass_time(1)
    assert stage.health.live() is None
    be_there(True)
    for _ in range(30):
        stage.pass_time(1)
    assert stage.health.live() is None
    stage.pass_time(1)
    assert stage.health.live() == "3 requests wait and nothing has moved for 31 s"


def test_a_poll_thread_that_waits_for_a_broker_that_is_away_is_not_stuck():
    stage = Stage()
    stage.broker = False
    for _ in range(100):
        stage.clock.advance(1)
        if stage.health.is_suspicious():
            stage.health.look()
    assert stage.health.live() is None


def test_a_process_that_has_no_loop_left_to_note_an_outage_stalls_all_the_same():
    stage = Stage()
    stage.claims.available = False
    stage.buffers.records = 3
    stage.clock.advance(31)
    assert "nothing has moved" in stage.health.live()


def test_a_broker_is_looked_for_only_when_nothing_has_moved_for_a_while():
    stage = Stage()
    assert not stage.health.is_suspicious()
    stage.buffers.records = 3
    stage.clock.advance(9)
    assert not stage.health.is_suspicious()
    stage.clock.advance(2)
    assert stage.health.is_suspicious()


@pytest.mark.parametrize("mover", ["dispatcher", "runner", "settler", "poller"])
def test_any_progress_is_life(mover):
    stage = Stage()
    stage.buffers.records = 3
    stage.pass_time(40)
    getattr(stage, mover).moved_s = stage.clock.mono_s()
    assert stage.health.live() is None


def test_a_dead_or_stuck_poll_thread_is_no_life():
    stage = Stage()
    stage.clock.advance(36)
    assert "has not turned for 36 s" in stage.health.live()
    stage.poller.is_alive = False
    assert stage.health.live() == "the poll thread is dead"


def test_ready_needs_an_assignment_redis_and_kafka():
    stage = Stage()
    assert stage.health.ready() is None
    stage.broker = False
    assert stage.health.ready() == "Kafka does not answer"
    stage.claims.available = False
    assert stage.health.ready() == "Redis does not answer"
    stage.owned = []
    assert stage.health.ready() == "no partition is assigned yet"
    stage.dispatcher.is_draining = True
    assert stage.health.ready() == "draining"


def test_a_member_that_was_given_nothing_is_idle_not_unready():
    stage = Stage()
    stage.owned = []
    stage.clock.advance(11)
    assert stage.health.ready() is None


def test_who_goes_on_without_redis_is_ready_without_it():
    stage = Stage(without_redis="run")
    stage.claims.available = False
    assert stage.health.ready() is None


def test_a_gpu_that_is_too_hot_takes_nothing_in_and_that_is_no_stall():
    stage = Stage()
    stage.dispatcher.takes_in = False
    stage.buffers.records = 3
    stage.pass_time(1000)
    assert stage.health.live() is None
    assert "too hot" in stage.health.ready()


def test_an_engine_that_takes_nothing_says_why():
    stage = Stage()
    stage.load.closed = "the server failed 5 times in a row"
    assert stage.health.ready() == "the engine takes nothing: the server failed 5 times in a row"


def test_while_the_engine_warms_up_it_lives_and_is_not_ready():
    stage = Stage()
    stage.poller.is_alive = False
    stage.health.is_warming = True
    assert stage.health.live() is None
    assert stage.health.ready() == "the engine warms up"
