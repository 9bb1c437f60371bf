import asyncio
import threading

import pytest
from prometheus_client import CollectorRegistry

from gpu_consumers.assignment import Assignment, Fetched, Release
from gpu_consumers.cancels import Noted
from gpu_consumers.claims import Claimed, ClaimsUnavailable, Memory, Verdict
from gpu_consumers.dispatch import Dispatcher
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.metrics import Metrics
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.parts import Parts
from gpu_consumers.policy.selection import Credit, Lane, charge
from gpu_consumers.seats import Seats
from gpu_consumers.settings import Gpu, GpuSettings
from tests.support.builders import WALL_S, work
from tests.support.clock import FakeClock
from topics import answers, codec
from topics.outcomes import Outcome, Reason
from topics.records import Control, ControlAction, ControlKind, Length, Reply, Tier
from topics.settings import Model, Pool


class FakeClaims:
    def __init__(self):
        self.verdicts, self.asked, self.released, self.away = {}, [], [], False
        self.takeovers, self.deferred = {}, []
        self.memory = Memory(int(WALL_S * 1000), is_lost=False)
        self._held = set()

    def holds(self, request_id):
        return request_id in self._held

    async def claim(self, asks):
        if self.away:
            raise ClaimsUnavailable("ConnectionError")
        self.asked.append([ask.id for ask in asks])
        claimed = [
            Claimed(self.verdicts.get(ask.id, Verdict.MINE), WALL_S, self.takeovers.get(ask.id, 0)) for ask in asks
        ]
        others = (Verdict.HELD, Verdict.DONE)
        self._held |= {ask.id for ask, c in zip(asks, claimed, strict=True) if c.verdict not in others}
        return claimed

    async def defer(self, ids):
        if self.away:
            raise ClaimsUnavailable("ConnectionError")
        self.deferred.append(list(ids))
        self._held -= set(ids)

    def may_have_forgotten(self, made_s):
        return made_s * 1000 <= self.memory.since_ms

    def let_lapse(self, ids):
        self._held -= set(ids)

    async def release(self, ids):
        if self.away:
            raise ClaimsUnavailable("ConnectionError")
        self.released += ids
        self._held -= set(ids)


class FakeRunner:
    def __init__(self, gpu, room):
        self.seats = Seats(gpu)
        self.room, self.started, self.aborted, self.entries = room, [], [], {}
        self.handed_over = []

    def has_room(self, _entry):
        return self.room > 0

    def reserve(self, entry):
        self.seats.reserve(entry)
        self.room -= 1

    def free(self, entry):
        self.room += entry.has_seat
        self.seats.free(entry)

    def start(self, entry):
        self.started.append(entry.id)
        self.entries[entry.id] = entry

    def find(self, request_id):
        return self.entries.get(request_id)

    def abort(self, entry):
        self.aborted.append(entry.id)

    def hand_over(self, assignments):
        self.handed_over = assignments


class FakeSettler:
    def __init__(self):
        self.open, self.answered, self.finished, self.unreadable, self.noted = 0, [], [], [], []
        self.cancelled, self.reasons, self.settling = [], {}, set()

    def is_settling(self, request_id):
        return request_id in self.settling

    def answer(self, entry, ending):
        self.answered.append((entry.id, ending.outcome))
        self.reasons[entry.id] = ending.reason

    def cancel(self, entry, order):
        self.cancelled.append((entry.id, order.id))

    def finish(self, fetched):
        self.finished.append(fetched.offset)
        fetched.assignment.finish_one()

    def note_answered(self, entry, reply):
        self.noted.append(entry.id)

    def give_up_unreadable(self, fetched, error):
        self.unreadable.append(error.reason.value)


class Stage:
    def __init__(self, *, room=100, settings=None, **gpu):
        self.settings = settings or GpuSettings(gpu=Gpu(**gpu))
        self.claims, self.settler, self.clock = FakeClaims(), FakeSettler(), FakeClock()
        self.runner = FakeRunner(self.settings.gpu, room)
        self.inbox, self.orders = Mailbox(lambda: None), Mailbox(lambda: None)
        self.metrics = metrics = Metrics(CollectorRegistry())
        self.dispatcher = Dispatcher(
            Parts(self.settings, self.inbox, self.orders, self.claims, self.settler, self.runner, self.clock, metrics)
        )
        self.where = Assignment("lane", 0, Lane(Tier.MEDIUM, Length.SHORT), self._tracker())

    def _tracker(self):
        return OffsetTracker(None, [], window_records=100)

    def put(self, *works, where=None):
        where = where or self.where
        values = [one if isinstance(one, bytes) else codec.encode(one) for one in works]
        self.inbox.put([Fetched(where, n, value, b"k", WALL_S + n) for n, value in enumerate(values)])
        where.handed += len(values)

    def order(self, *names, tenant=None):
        for name in names:
            made = cancel_order(name, tenant)
            self.orders.put(Noted(made, self.clock.wall_s()))

    async def turn(self):
        """Let the dispatcher do all it can do now."""
        task = asyncio.create_task(self.dispatcher.run())
        self.dispatcher.wake()
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()


def cancel_order(name, tenant=None):
    return Control(
        id=f"o-{name}",
        action=ControlAction.CANCEL,
        kind=ControlKind.REQUEST,
        name=name,
        at_s=WALL_S,
        by="someone",
        tenant=tenant,
    )


def jobs(*ids, **request):
    return [work({"id": i, **request}) for i in ids]


@pytest.mark.asyncio
async def test_one_claim_serves_all_that_the_engine_has_room_for():
    stage = Stage(room=3)
    stage.put(*jobs("a", "b", "c", "d"))
    await stage.turn()
    assert stage.claims.asked == [["a", "b", "c"]]
    assert stage.runner.started == ["a", "b", "c"]
    assert stage.dispatcher.buffers.records == 1
    stage.runner.room = 1
    await stage.turn()
    assert stage.claims.asked[1:] == [["d"]]


@pytest.mark.asyncio
async def test_held_ids_are_asked_again_after_a_while_and_hold_no_seat():
    stage = Stage(room=1, held_retry_s=1.0)
    stage.claims.verdicts["a"] = Verdict.HELD
    stage.put(*jobs("a"))
    await stage.turn()
    assert (stage.dispatcher.held, stage.runner.room, stage.where.inflight) == (1, 1, 1)
    await stage.turn()
    assert len(stage.claims.asked) == 1
    stage.clock.advance(1.1)
    stage.claims.verdicts["a"] = Verdict.DONE
    await stage.turn()
    assert (stage.settler.finished, stage.dispatcher.held, stage.where.inflight) == ([0], 0, 0)
    assert stage.runner.started == []


@pytest.mark.asyncio
async def test_the_same_id_twice_is_claimed_once():
    stage = Stage()
    stage.put(*jobs("a", "a"))
    await stage.turn()
    assert stage.claims.asked == [["a"]]
    assert stage.dispatcher.held == 1


@pytest.mark.asyncio
async def test_an_id_whose_end_is_settling_here_is_not_claimed_although_its_claim_is_lost():
    stage = Stage(held_retry_s=1.0)
    stage.settler.settling = {"a"}
    stage.put(*jobs("a", "b"))
    await stage.turn()
    assert (stage.claims.asked, stage.dispatcher.held) == ([["b"]], 1)
    stage.settler.settling.clear()
    stage.clock.advance(1.1)
    await stage.turn()
    assert stage.claims.asked == [["b"], ["a"]]


@pytest.mark.asyncio
async def test_without_redis_everything_waits_in_its_place_and_starts_when_it_is_back():
    stage = Stage(redis_retry_s=0.25)
    stage.claims.away = True
    stage.put(*jobs("a", "b"))
    await stage.turn()
    assert (stage.dispatcher.buffers.records, stage.runner.room, stage.where.inflight) == (2, 100, 0)
    assert stage.where.buffered == 2
    stage.claims.away = False
    await stage.turn()
    assert stage.runner.started == []  # not before the pause is over
    stage.clock.advance(0.3)
    await stage.turn()
    assert stage.runner.started == ["a", "b"]


@pytest.mark.asyncio
async def test_work_that_goes_on_without_redis_begins_unclaimed_and_is_counted():
    stage = Stage()
    stage.claims.verdicts["a"] = Verdict.UNCLAIMED
    stage.put(*jobs("a", "b"))
    await stage.turn()
    assert stage.runner.started == ["a", "b"]
    assert [stage.runner.find(i).is_unclaimed for i in "ab"] == [True, False]
    assert stage.metrics.claims.labels("unclaimed")._value.get() == 1


@pytest.mark.asyncio
async def test_expired_work_is_claimed_and_answered_although_every_seat_is_taken():
    stage = Stage(room=0)
    stage.put(*jobs("late", deadline_s=WALL_S + 1), *jobs("b"))
    await stage.turn()
    assert stage.settler.answered == []
    stage.clock.advance(1.0)
    await stage.turn()
    assert stage.settler.answered == [("late", Outcome.EXPIRED)]
    assert stage.claims.asked == [["late"]]


@pytest.mark.asyncio
async def test_nothing_starts_while_too_much_waits_for_acknowledgement():
    stage = Stage(unsettled_requests=5)
    stage.settler.open = 5
    stage.put(*jobs("a"))
    await stage.turn()
    assert stage.claims.asked == []
    stage.settler.open = 4
    await stage.turn()
    assert stage.runner.started == ["a"]


@pytest.mark.asyncio
async def test_while_nothing_is_taken_in_only_what_needs_no_engine_is_answered():
    stage = Stage()
    stage.dispatcher.takes_in = False
    stage.put(*jobs("late", deadline_s=WALL_S - 1), *jobs("b"))
    await stage.turn()
    assert stage.settler.answered == [("late", Outcome.EXPIRED)]
    assert stage.runner.started == []
    assert not stage.dispatcher.take_waited(), "it does not wait for room"
    stage.dispatcher.takes_in = True
    await stage.turn()
    assert stage.runner.started == ["b"]


@pytest.mark.asyncio
async def test_a_draining_process_starts_nothing():
    stage = Stage()
    stage.dispatcher.is_draining = True
    stage.put(*jobs("a"))
    await stage.turn()
    assert stage.claims.asked == []


@pytest.mark.asyncio
async def test_released_partitions_are_dropped_wherever_they_wait():
    stage = Stage(room=2)
    stage.claims.verdicts["held"] = Verdict.HELD
    stage.put(*jobs("held", "runs", "waits"))
    await stage.turn()
    stage.put(*jobs("later"))
    stage.inbox.put(Release([stage.where]))
    stage.put(*jobs("too late"))
    stage.runner.room = 0
    await stage.turn()
    assert (stage.dispatcher.buffers.records, stage.dispatcher.held, stage.where.buffered) == (0, 0, 0)
    assert all("later" not in asked for asked in stage.claims.asked)
    assert not stage.where.idle.is_set()
    stage.where.inflight = 1
    stage.where.finish_one()
    assert stage.where.idle.is_set()


@pytest.mark.asyncio
async def test_what_runs_of_a_released_partition_goes_on_until_it_is_to_be_aborted_and_then_its_claim_goes():
    stage = Stage()
    stage.put(*jobs("runs"))
    await stage.turn()
    stage.inbox.put(Release([stage.where]))
    await stage.turn()
    assert stage.runner.handed_over == []
    stage.inbox.put(Release([stage.where], aborts=True))
    await stage.turn()
    assert stage.runner.handed_over == [stage.where]
    stage.dispatcher.give_back(stage.runner.find("runs"))
    await asyncio.gather(*stage.dispatcher._takeovers.tasks)
    assert (stage.claims.released, stage.where.inflight) == (["runs"], 0)
    assert stage.where.idle.is_set()


@pytest.mark.asyncio
async def test_a_claim_that_redis_does_not_take_back_is_left_to_lapse():
    stage = Stage()
    stage.put(*jobs("runs"))
    await stage.turn()
    stage.claims.away = True
    stage.dispatcher.give_back(stage.runner.find("runs"))
    await asyncio.gather(*stage.dispatcher._takeovers.tasks)
    assert not stage.claims.holds("runs")
    assert stage.where.inflight == 0


@pytest.mark.asyncio
async def test_an_unreadable_record_counts_as_in_flight_until_it_is_dead_lettered():
    stage = Stage()
    stage.put(b"not json", *jobs("a"))
    await stage.turn()
    assert stage.settler.unreadable == ["undecodable"]
    assert (stage.where.inflight, stage.where.buffered) == (2, 0)
    assert stage.runner.started == ["a"]


@pytest.mark.asyncio
async def test_what_redis_forgot_is_looked_up_before_it_runs_and_what_waits_beside_it_at_once(monkeypatch):
    readings = []

    def find(_settings, ids, topic, since_s):
        readings.append((topic, ids))
        return {i: Reply(id=i, outcome=Outcome.COMPLETED) for i in ids if i in ("a", "c") and topic == "replies"}

    monkeypatch.setattr(answers, "find", find)
    stage = Stage(room=2)
    stage.claims.verdicts = dict.fromkeys("abcd", Verdict.FORGOTTEN)
    stage.claims.memory = Memory(int((WALL_S + 60) * 1000), is_lost=True)
    stage.put(*jobs("a", "b", "c", "d"))
    await settle(stage)
    await settle(stage)
    assert (stage.settler.noted, stage.runner.started) == (["a", "c"], ["b", "d"])
    assert readings == [("replies", ["a", "b", "c", "d"])]


@pytest.mark.asyncio
async def test_what_was_held_when_redis_forgot_is_looked_up_at_once_however_little_room_there_is(monkeypatch):
    readings = []
    monkeypatch.setattr(answers, "find", lambda _settings, ids, topic, since_s: readings.append((topic, ids)) or {})
    stage = Stage(room=1, held_retry_s=1.0)
    stage.claims.memory = Memory(int((WALL_S + 60) * 1000), is_lost=True)
    for request_id in "abcd":
        stage.claims.verdicts[request_id] = Verdict.HELD
        stage.put(*jobs(request_id))
        await stage.turn()
    assert stage.dispatcher.held == 4
    stage.claims.verdicts = dict.fromkeys("abcd", Verdict.FORGOTTEN)
    stage.clock.advance(1.0)
    await settle(stage)
    await settle(stage)
    assert readings == [("replies", ["a", "b", "c", "d"])]


@pytest.mark.asyncio
@pytest.mark.parametrize("answered", [True, False])
async def test_a_taken_over_id_runs_only_when_no_answer_lies_in_the_log(answered, monkeypatch):
    def find(_settings, ids, topic, since_s):
        assert since_s == WALL_S
        return {i: Reply(id=i, outcome=Outcome.COMPLETED) for i in ids} if answered and topic == "replies" else {}

    monkeypatch.setattr(answers, "find", find)
    stage = Stage()
    stage.claims.verdicts["a"] = Verdict.TAKEOVER
    stage.put(*jobs("a"))
    await stage.turn()
    await asyncio.gather(*stage.dispatcher._takeovers.tasks)
    assert (stage.settler.noted, stage.runner.started) == ((["a"], []) if answered else ([], ["a"]))


def taken_over(monkeypatch, room=100, **takeovers):
    """A stage that claims ids whose owners were lost so many times; none was answered."""
    monkeypatch.setattr(answers, "find", lambda *_: {})
    stage = Stage(room=room, max_takeovers=3, held_retry_s=1.0)
    stage.claims.verdicts = dict.fromkeys(takeovers, Verdict.TAKEOVER)
    stage.claims.takeovers = takeovers
    stage.put(*jobs(*takeovers))
    return stage


async def settle(stage):
    await stage.turn()
    await asyncio.gather(*stage.dispatcher._takeovers.tasks)
    await stage.turn()


@pytest.mark.asyncio
async def test_what_one_loss_left_goes_on_at_once(monkeypatch):
    stage = taken_over(monkeypatch, a=1, b=1, c=1)
    await settle(stage)
    assert stage.runner.started == ["a", "b", "c"]
    assert stage.claims.deferred == []


@pytest.mark.asyncio
async def test_suspects_run_one_at_a_time_and_those_who_wait_are_given_back_before_the_first_begins(monkeypatch):
    stage = taken_over(monkeypatch, room=2, a=2, b=2, c=3)
    begun = []
    stage.runner.start = lambda entry: begun.append((entry, len(stage.claims.deferred)))
    await settle(stage)
    stage.runner.room = 100
    await settle(stage)  # c, beside a
    assert stage.claims.deferred == [["b"], ["c"]]
    assert [(entry.id, deferred >= 1) for entry, deferred in begun] == [("a", True)]
    stage.clock.advance(1.1)
    stage.put(*jobs("fresh"))
    await settle(stage)
    assert stage.dispatcher.buffers.records == 2  # not even asked for while a has its seat
    assert [entry.id for entry, _ in begun] == ["a", "fresh"]
    stage.runner.free(begun[0][0])
    await settle(stage)
    assert [entry.id for entry, _ in begun] == ["a", "fresh", "b"]
    assert (stage.dispatcher.buffers.records, stage.claims.deferred) == (1, [["b"], ["c"]])


@pytest.mark.asyncio
async def test_work_over_which_too_many_owners_were_lost_is_given_up_and_does_not_run(monkeypatch):
    stage = taken_over(monkeypatch, a=4, b=1)
    await settle(stage)
    assert stage.settler.answered == [("a", Outcome.FAILED)]
    assert stage.settler.reasons["a"] is Reason.CRASH_LOOP
    assert stage.runner.started == ["b"]
    assert stage.runner.room == 99


@pytest.mark.asyncio
async def test_a_suspect_that_waits_leaves_with_its_partition_and_can_be_cancelled(monkeypatch):
    stage = taken_over(monkeypatch, a=2, b=2, c=2)
    await settle(stage)
    assert (stage.runner.started, stage.dispatcher.buffers.records) == (["a"], 2)
    stage.order("b")
    await settle(stage)
    assert stage.settler.cancelled == [("b", "o-b")]
    stage.inbox.put(Release([stage.where]))
    await settle(stage)
    assert (stage.dispatcher.buffers.records, stage.where.buffered) == (0, 0)


@pytest.mark.asyncio
async def test_what_a_leaving_partition_had_taken_over_is_given_back_with_its_past(monkeypatch):
    looked_up = threading.Event()
    stage = taken_over(monkeypatch, a=1)
    monkeypatch.setattr(answers, "find", lambda *_: {} if looked_up.wait(10) else None)
    await stage.turn()
    stage.where.release()
    looked_up.set()
    await settle(stage)
    await asyncio.gather(*stage.dispatcher._takeovers.tasks)
    assert (stage.claims.deferred, stage.claims.released, stage.runner.started) == ([["a"]], [], [])


@pytest.mark.asyncio
@pytest.mark.parametrize("comes_first", ["work", "order"])
async def test_cancelled_work_in_the_buffers_is_claimed_and_answered_although_every_seat_is_taken(comes_first):
    stage = Stage(room=0)
    if comes_first == "work":
        stage.put(*jobs("a", "b", "c"))
        await stage.turn()
        stage.order("b")
    else:
        stage.order("b")
        await stage.turn()
        stage.put(*jobs("a", "b", "c"))
    await stage.turn()
    assert stage.settler.cancelled == [("b", "o-b")]
    assert stage.claims.asked == [["b"]]
    assert (stage.dispatcher.buffers.records, stage.where.inflight) == (2, 1)


@pytest.mark.asyncio
async def test_a_cancel_of_running_work_aborts_it_once():
    stage = Stage()
    stage.put(*jobs("a", "b"))
    await stage.turn()
    stage.order("a")
    await stage.turn()
    stage.order("a")
    await stage.turn()
    assert stage.runner.aborted == ["a"]
    assert stage.runner.entries["a"].order.id == "o-a"
    assert stage.settler.cancelled == []


@pytest.mark.asyncio
async def test_the_cancel_of_another_tenant_is_ignored_and_counted_and_the_right_one_works():
    stage = Stage(room=0)
    stage.put(*jobs("a"))
    stage.order("a", tenant="other")
    await stage.turn()
    assert stage.claims.asked == []
    assert stage.metrics.cancels.labels("foreign")._value.get() == 1
    stage.order("a", tenant="acme")
    await stage.turn()
    assert stage.settler.cancelled == [("a", "o-a")]
    assert stage.metrics.cancels.labels("foreign")._value.get() == 1


@pytest.mark.asyncio
async def test_cancelled_work_that_another_holds_is_asked_for_without_a_seat_until_that_one_is_done_or_dead():
    stage = Stage(room=2, held_retry_s=1.0)
    stage.claims.verdicts |= {"a": Verdict.HELD, "b": Verdict.HELD}
    stage.put(*jobs("a", "b"))
    await stage.turn()
    stage.runner.room = 0
    stage.order("b")
    await stage.turn()
    assert stage.claims.asked == [["a", "b"], ["b"]]
    stage.claims.verdicts["b"] = Verdict.MINE
    stage.clock.advance(1.1)
    await stage.turn()
    assert stage.settler.cancelled == [("b", "o-b")]
    assert (stage.dispatcher.held, stage.runner.started) == (1, [])


@pytest.mark.asyncio
async def test_a_cancel_waits_for_redis_and_is_applied_when_it_is_back():
    stage = Stage(room=0, redis_retry_s=0.25)
    stage.claims.away = True
    stage.put(*jobs("a"))
    stage.order("a")
    await stage.turn()
    assert (stage.dispatcher.buffers.records, stage.where.inflight) == (1, 0)
    stage.claims.away = False
    stage.clock.advance(0.3)
    await stage.turn()
    assert stage.settler.cancelled == [("a", "o-a")]


@pytest.mark.asyncio
async def test_an_aged_copy_of_cancelled_work_is_finished_in_silence():
    stage = Stage(room=0, held_retry_s=1.0)
    stage.put(*jobs("a", "a"))
    stage.order("a")
    await stage.turn()
    assert stage.settler.cancelled == [("a", "o-a")]
    stage.claims._held.discard("a")
    stage.claims.verdicts["a"] = Verdict.DONE
    stage.clock.advance(1.1)
    await stage.turn()
    assert (stage.settler.cancelled, stage.settler.finished) == ([("a", "o-a")], [1])


@pytest.mark.asyncio
async def test_a_taken_over_id_that_is_cancelled_meanwhile_does_not_run(monkeypatch):
    looked_up = threading.Event()

    def find(_settings, _ids, _topic, _since_s):
        looked_up.wait(10)
        return {}

    monkeypatch.setattr(answers, "find", find)
    stage = Stage()
    stage.claims.verdicts["a"] = Verdict.TAKEOVER
    stage.put(*jobs("a"))
    await stage.turn()
    stage.order("a")
    await stage.turn()
    looked_up.set()
    await asyncio.gather(*stage.dispatcher._takeovers.tasks)
    assert (stage.settler.cancelled, stage.runner.started) == ([("a", "o-a")], [])


@pytest.mark.asyncio
async def test_released_partitions_take_their_cancelled_work_along():
    stage = Stage(room=0)
    stage.claims.away = True
    stage.put(*jobs("a"))
    stage.order("a")
    await stage.turn()
    stage.inbox.put(Release([stage.where]))
    stage.claims.away = False
    stage.clock.advance(1.0)
    await stage.turn()
    assert (stage.settler.cancelled, stage.claims.asked, stage.where.buffered) == ([], [], 0)


@pytest.mark.asyncio
async def test_work_has_waited_only_when_it_lacked_nothing_but_room_at_every_moment():
    stage = Stage(room=1, unsettled_requests=5)
    stage.put(*jobs("a", "b"))
    await stage.turn()
    assert not stage.dispatcher.take_waited()  # it began within the interval
    await stage.turn()
    assert stage.dispatcher.take_waited()
    stage.runner.room = 1
    await stage.turn()
    stage.put(*jobs("c"))
    await stage.turn()
    assert not stage.dispatcher.take_waited()  # nothing waited in between
    stage.settler.open = 5
    assert not stage.dispatcher.take_waited()
    stage.settler.open = 0
    assert not stage.dispatcher.take_waited()
    assert stage.dispatcher.take_waited()


@pytest.mark.asyncio
async def test_the_pools_weights_decide_which_tier_is_served():
    pools = {"default": Pool(high_weight=1, medium_weight=1, low_weight=6)}
    stage = Stage(room=14, settings=GpuSettings(pools=pools, models={"llama-3-8b": Model()}))
    for tier in (Tier.HIGH, Tier.LOW):
        where = Assignment(f"lane.{tier}", 0, Lane(tier, Length.SHORT), stage._tracker())
        stage.put(*jobs(*(f"{tier}{n}" for n in range(20))), where=where)
    await stage.turn()
    assert sum(i.startswith("low") for i in stage.runner.started) == 12


@pytest.mark.asyncio
async def test_aged_copies_of_answered_work_use_up_nothing_of_the_aged_share():
    stage = Stage(room=40)
    aged = Assignment("lane.aged", 0, Lane(Tier.AGED, Length.SHORT), stage._tracker())
    stage.claims.verdicts |= {f"stale{n}": Verdict.DONE for n in range(30)}
    stage.put(*jobs(*(f"stale{n}" for n in range(30)), *(f"aged{n}" for n in range(30))), where=aged)
    stage.put(*jobs(*(f"new{n}" for n in range(90))))
    await stage.turn()
    assert (len(stage.settler.finished), len(stage.runner.started)) == (30, 40)
    stage.runner.room = 50
    await stage.turn()
    assert sum(i.startswith("aged") for i in stage.runner.started[40:]) == 5


@pytest.mark.asyncio
async def test_work_that_another_held_is_charged_to_its_lane_once_when_it_begins():
    stage = Stage(held_retry_s=1.0)
    stage.claims.verdicts["a"] = Verdict.HELD
    stage.put(*jobs("a"))
    await stage.turn()
    before = stage.dispatcher.selector.credit
    stage.claims.verdicts["a"] = Verdict.MINE
    stage.clock.advance(1.1)
    await stage.turn()
    lane = stage.where.lane
    assert stage.runner.started == ["a"]
    assert stage.dispatcher.selector.credit == charge(Gpu().shares(Pool()), before, [lane], lane, 100.0)
    assert before == Credit()


@pytest.mark.asyncio
async def test_who_failed_together_is_tried_by_halves_and_fresh_work_goes_on_beside():
    stage = Stage(room=4)
    stage.runner.spare = lambda _entry: None
    stage.put(*jobs("a", "b", "c", "d"))
    await stage.turn()
    for entry in stage.runner.entries.values():
        stage.runner.free(entry)
        stage.dispatcher.failures.broke(entry, None)
    stage.clock.advance(0.2)
    await stage.turn()
    await stage.turn()
    assert (stage.claims.released, stage.runner.started) == (["a", "b", "c", "d"], ["a", "b", "c", "d", "a", "b"])
    stage.put(*jobs("fresh"))
    await stage.turn()
    assert stage.runner.started[6:] == ["fresh"]
    assert stage.where.inflight == 3


@pytest.mark.asyncio
async def test_nobody_passes_a_suspect_that_waits_for_room():
    stage = Stage(room=2)
    stage.runner.spare = lambda _entry: None
    stage.put(*jobs("a", "b"))
    await stage.turn()
    for entry in stage.runner.entries.values():
        stage.dispatcher.failures.broke(entry, None)
        stage.runner.free(entry)
    stage.runner.room = 0
    stage.clock.advance(0.2)
    stage.put(*jobs("fresh"))
    await stage.turn()
    stage.runner.has_room = lambda entry: entry.id == "fresh"
    await stage.turn()
    assert stage.runner.started == ["a", "b"]
