from itertools import count

import pytest

from gpu_consumers.assignment import Assignment, Entry, Fetched
from gpu_consumers.engines.null import NullEngine
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.selection import LANES, Lane
from gpu_consumers.running import Runner
from gpu_consumers.selecting import Selector
from gpu_consumers.settings import Gpu, GpuSettings
from tests.support.builders import WALL_S, work
from tests.support.clock import FakeClock
from topics.errors import ConfigError
from topics.records import Length, Tier
from topics.settings import Pool, load

SHORT, LONG, LOW, HIGH = (
    Lane(Tier.MEDIUM, Length.SHORT),
    Lane(Tier.MEDIUM, Length.LONG),
    Lane(Tier.LOW, Length.SHORT),
    Lane(Tier.HIGH, Length.SHORT),
)


class Stage:
    """A selector before a real runner whose attempts are not begun."""

    def __init__(self, **gpu):
        self.clock, self.settings, self.order = FakeClock(), Gpu(**gpu), count()
        self.runner = Runner(self.settings, NullEngine(self.clock), None, self.clock)
        self.selector = Selector(self.settings, self.settings.shares(Pool()), self.runner, self.clock)
        self.barred = set()
        self.lanes = {
            lane: Assignment(str(lane), 0, lane, OffsetTracker(None, [], window_records=99)) for lane in LANES
        }

    def put(self, *ids, lane=SHORT, model="a", units=100.0, tokens=10, is_suspect=False):
        made = []
        for request_id in ids:
            number = next(self.order)
            fetched = Fetched(self.lanes[lane], number, b"", None, WALL_S + number)
            job = work({"id": request_id, "model": model})
            made.append(Entry(fetched, job, Ask(tokens, tokens, units), self.clock.mono_s(), is_suspect=is_suspect))
            self.selector.buffers.add(made[-1])
        return made

    def select(self, limit=100):
        self.selector.begin_turn()
        return self.more(limit)

    def more(self, limit=100):
        return self.selector.select(limit, lambda entry: entry.id not in self.barred)

    def ids(self, limit=100):
        return [entry.id for entry in self.select(limit)]


def test_the_engine_is_filled_up_to_its_cost():
    stage = Stage(window_cost_units=250.0)
    stage.put("a", "b", "c")
    first = stage.select()
    assert [entry.id for entry in first] == ["a", "b"]
    stage.runner.free(first[0])
    assert stage.ids() == ["c"]


def test_work_dearer_than_the_engine_enters_it_alone():
    stage = Stage(window_cost_units=250.0)
    stage.put("dear", "b", units=1000.0)
    (dear,) = stage.select()
    stage.runner.free(dear)
    assert stage.ids() == ["b"]


@pytest.mark.parametrize(
    "room", [{"window_requests": 2}, {"window_kv_tokens": 40}, {"window_cost_units": 200.0}], ids=str
)
def test_a_model_whose_room_is_full_holds_up_no_other_on_its_lane_and_keeps_its_order(room):
    stage = Stage(model_rooms={"full": room})
    full = [*stage.put("f1", "f2", "f3", "f4", model="full")]
    stage.put("o1", "o2", model="other")
    stage.put("n1", model="another")
    assert stage.ids() == ["f1", "f2", "o1", "o2", "n1"]
    assert stage.ids() == []
    stage.runner.free(full[1])
    assert stage.ids() == ["f3"]


def test_rooms_of_models_lie_within_that_of_the_engine():
    stage = Stage(window_requests=3, model_rooms={"a": {"window_requests": 2}, "b": {}})
    stage.put("a1", "a2", "a3", model="a")
    stage.put("b1", "b2", model="b")
    assert stage.ids() == ["a1", "a2", "b1"]


def test_a_large_job_for_which_the_engine_has_no_room_is_not_passed_over():
    stage = Stage(window_cost_units=250.0, model_rooms={"a": {"window_requests": 9}})
    stage.put("a1", model="a")
    stage.put("large", units=200.0)
    stage.put("small", units=1.0)
    assert stage.ids() == ["a1"]


def test_a_room_for_a_model_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"model_rooms names lama"):
        load(GpuSettings, gpu=Gpu(model_rooms={"lama": {}}))


def test_longs_stand_back_for_the_shorts_that_came_lately_and_have_all_again_later():
    stage = Stage(window_requests=8, buffer_records=100)
    for _ in range(40):
        shorts = stage.put("s", "t")
        stage.select()
        stage.clock.advance(0.5)
        stage.select()
        for short in shorts:
            stage.runner.free(short)
    stage.put(*(f"l{n}" for n in range(20)), lane=LONG)
    assert len(stage.ids()) == 5  # room for two shorts at a time, and one more by chance
    stage.clock.advance(60.0)
    assert len(stage.ids()) == 3


def test_longs_are_counted_in_what_they_take_most_of():
    stage = Stage(window_requests=64, window_cost_units=1000.0, long_window_ratio=0.5)
    stage.put("l1", "l2", "l3", lane=Lane(Tier.HIGH, Length.LONG), units=250.0)
    stage.put(*(f"s{n}" for n in range(30)), lane=LOW, units=10.0)
    chosen = stage.ids(20)
    assert {i for i in chosen if i.startswith("l")} == {"l1", "l2"}
    assert len(chosen) == 20


def static(**gpu):
    return Stage(static_batch_size=3, window_requests=64, prefill_limit_tokens=20, **gpu)


def test_a_static_batch_is_of_one_model_as_the_shares_say_and_the_next_one_follows_its_end():
    stage = static()
    stage.put("a1", lane=LOW)
    stage.put("b1", "b2", model="b", lane=LOW)
    stage.put("a2", "a3", "a4", lane=HIGH)
    batch = stage.select()
    assert [entry.id for entry in batch] == ["a2", "a1", "a3"]
    stage.clock.advance(1.0)
    assert stage.ids() == []
    for entry in batch:
        assert stage.ids() == []
        stage.runner.free(entry)
    assert stage.ids() == ["a4"]


def test_a_static_batch_that_is_not_full_waits_for_the_window_of_its_first_tier():
    stage = static()
    stage.put("l1", lane=LOW)
    assert (stage.ids(), stage.selector.due_s) == ([], pytest.approx(stage.clock.mono_s() + 0.1))
    stage.put("h1", lane=HIGH)
    assert (stage.ids(), stage.selector.due_s) == ([], pytest.approx(stage.clock.mono_s() + 0.01))
    stage.clock.advance(0.011)
    assert stage.ids() == ["h1", "l1"]
    assert stage.selector.due_s is None


def test_what_another_consumer_held_joins_a_batch_of_its_model_and_no_other():
    stage = static()
    held, other = [*stage.put("a1"), *stage.put("b1", model="b")]
    for entry in (held, other):
        stage.selector.buffers.take(entry)
    stage.put("a2", "a3", "a4")
    stage.selector.begin_turn()
    assert (stage.selector.seat(held), stage.selector.seat(other)) == (True, False)
    assert [entry.id for entry in stage.more(9)] == ["a2", "a3"]
    stage.selector.begin_turn()
    assert not stage.selector.seat(other)


def test_suspects_that_may_run_go_first_and_the_others_hold_up_nobody():
    stage = Stage(window_requests=3)
    stage.barred = {"s2"}
    stage.put("h1", lane=HIGH)
    stage.put("s1", "s2", "s3", lane=LOW, is_suspect=True)
    assert stage.ids() == ["s1", "s3", "h1"]


def test_nobody_passes_a_suspect_that_waits_for_room_in_the_engine():
    stage = Stage(window_cost_units=250.0)
    stage.put("a1", units=200.0)
    (running,) = stage.select()
    stage.put("s1", units=200.0, is_suspect=True)
    stage.put("small", units=1.0)
    assert stage.ids() == []
    stage.runner.free(running)
    assert stage.ids() == ["s1", "small"]


def test_a_suspect_whose_models_room_is_full_holds_up_no_other_model():
    stage = Stage(model_rooms={"full": {"window_requests": 1}})
    (running,) = [*stage.put("f1", model="full")]
    assert stage.ids() == ["f1"]
    stage.put("s1", "s2", model="full", is_suspect=True)
    stage.put("f2", model="full")
    stage.put("o1", model="other")
    assert stage.ids() == ["o1"]
    stage.runner.free(running)
    assert stage.ids() == ["s1"]


def test_a_suspect_makes_a_static_batch_with_fresh_work_of_its_model_as_soon_as_the_engine_is_free():
    stage = static()
    stage.put("a1", "a2", "a3")
    batch = stage.select()
    stage.put("s1", "s2", model="b", is_suspect=True)
    stage.put("b1", "b2", model="b")
    stage.put("a4", lane=HIGH)
    assert stage.ids() == []
    for entry in batch:
        stage.runner.free(entry)
    assert stage.ids() == ["s1", "s2", "b1"]


def test_suspects_whose_turn_it_is_not_make_no_static_batch_due():
    stage = static()
    stage.barred = {"s1", "s2", "s3"}
    stage.put("s1", "s2", "s3", is_suspect=True)
    stage.put("a1")
    assert (stage.ids(), stage.selector.due_s) == ([], pytest.approx(stage.clock.mono_s() + 0.03))
    stage.clock.advance(1.0)
    assert stage.ids() == ["a1"]
    assert stage.selector.buffers.records == 3


def test_a_static_batch_must_fit_into_one_claim():
    with pytest.raises(ValueError, match="static_batch_size"):
        Gpu(static_batch_size=200, claim_batch=100)
