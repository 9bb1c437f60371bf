"""The poll thread's turns against a consumer that does as it is told; the thread itself is not started."""

import threading
import time
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from prometheus_client import CollectorRegistry

from gpu_consumers import poller
from gpu_consumers.assignment import Assignment, Done, Fetched, Release
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.metrics import Metrics
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy.selection import Lane
from gpu_consumers.poller import UNSUBSCRIBE_S, Links, Poller
from gpu_consumers.settings import Gpu
from tests.support.clock import FakeClock
from topics import offset_map
from topics.errors import DependencyDown
from topics.records import Length, Tier

LANE = "lanes.default.medium.short"
LONG_LANE = "lanes.default.medium.long"
STALE = KafkaError.STALE_MEMBER_EPOCH


class Message:
    def __init__(self, offset, partition=0, error=None, value=b"{}"):
        self._offset, self._partition, self._error, self._value = offset, partition, error, value

    def error(self):
        return self._error

    def topic(self):
        return LANE

    def partition(self):
        return self._partition

    def offset(self):
        return self._offset

    def value(self):
        return self._value

    def key(self):
        return b"k"

    def timestamp(self):
        return 1, 1_700_000_000_000


class FakeConsumer:
    """Like the client, it keeps a pause when the partition goes and comes back."""

    def __init__(self, on_commit):
        self.on_commit = on_commit
        self.ready, self.calls, self.stored, self.commit_errors = [], [], {}, []
        self.paused, self.subscriptions, self.held = set(), [], []
        self.on_its_way = []
        """What the next polls bring of rebalances."""
        self.answers = []
        """What the next calls of `committed` do instead of their job."""

    def subscribe(self, topics, **_):
        self.subscriptions.append(topics)

    def unsubscribe(self):
        self.calls.append("unsubscribe")

    def assignment(self):
        return self.held

    def close(self):
        self.calls.append("close")

    def poll(self, _timeout):
        if self.on_its_way:
            self.on_its_way.pop(0)(self)
        self.ready = [message for message in self.ready if message.partition() not in self.paused]
        return self.ready.pop(0) if self.ready else None

    def consume(self, count, timeout):
        taken, self.ready = self.ready[:count], self.ready[count:]
        return taken

    def pause(self, partitions):
        self.paused |= {tp.partition for tp in partitions}
        self.calls.append(("pause", partitions[0].partition))

    def resume(self, partitions):
        self.paused -= {tp.partition for tp in partitions}
        self.calls.append(("resume", partitions[0].partition))

    def committed(self, partitions, timeout):
        if self.answers:
            return self.answers.pop(0)(partitions)
        return [self.stored.get(tp.partition) or TopicPartition(tp.topic, tp.partition, -1001) for tp in partitions]

    def incremental_assign(self, partitions):
        self.calls.append(("assign", [(tp.partition, tp.offset) for tp in partitions]))

    def incremental_unassign(self, partitions):
        self.calls.append(("unassign", [tp.partition for tp in partitions]))

    def commit(self, offsets, asynchronous):
        error = self.commit_errors.pop(0) if self.commit_errors else None
        self.calls.append(("commit", [(tp.partition, tp.offset) for tp in offsets]))
        if asynchronous:
            self.on_commit(error and KafkaError(error), offsets)
        elif error:
            raise KafkaException(KafkaError(error))
        return offsets


class Stage:
    """A poller, its fake consumer, and the loop's side of its mailboxes."""

    def __init__(self, **gpu):
        self.clock = FakeClock()
        self.inbox = Mailbox(lambda: None)
        made = []

        def make(on_commit):
            made.append(FakeConsumer(on_commit))
            return made[0]

        lanes = {LANE: Lane(Tier.MEDIUM, Length.SHORT), LONG_LANE: Lane(Tier.MEDIUM, Length.LONG)}
        links = Links(make, lanes, tuple(lanes.values()), self.inbox)
        settings = Gpu(**{"drain_deadline_s": 5.0, "buffer_records": 4, **gpu})
        self.poller = Poller(settings, links, self.clock, Metrics(CollectorRegistry()))
        self.consumer = made[0]

    def assign(self, *partitions, topic=LANE):
        self.poller._on_assign(self.consumer, [TopicPartition(topic, p) for p in partitions])
        return self.poller.owned()

    def fetch(self, *offsets, partition=0, **message):
        """Let these come in one turn; what the loop got of them."""
        self.consumer.ready = [Message(offset, partition, **message) for offset in offsets]
        self.poller._turn()
        return [one for batch in self.inbox.take() if not isinstance(batch, Release) for one in batch]

    def finish(self, *fetched):
        for one in fetched:
            self.poller.done.put(Done(one.assignment, one.offset))

    def turn_later(self, seconds=1.0):
        self.clock.advance(seconds)
        self.poller._turn()

    def commits(self):
        return [call[1] for call in self.consumer.calls if call[0] == "commit"]


def test_records_are_handed_over_with_their_lane_and_time():
    stage = Stage()
    stage.assign(0)
    one, two = stage.fetch(5, 6)
    assert isinstance(one, Fetched)
    assert (one.offset, two.offset, one.timestamp_s) == (5, 6, 1_700_000_000.0)
    assert one.assignment.lane == Lane(Tier.MEDIUM, Length.SHORT)


def test_a_commit_waits_for_its_interval_and_for_the_first_unfinished():
    stage = Stage(commit_interval_s=1.0)
    stage.assign(0)
    first, second, _ = stage.fetch(0, 1, 2)
    stage.finish(second)
    stage.poller._turn()
    assert stage.commits() == []
    stage.turn_later()
    assert stage.commits() == [[(0, 0)]]
    stage.finish(first)
    stage.turn_later()
    assert stage.commits()[-1] == [(0, 2)]
    stage.turn_later()
    assert len(stage.commits()) == 2  # nothing moved since


@pytest.mark.parametrize(
    "error", [STALE, KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS]
)
def test_a_refused_commit_is_tried_again_for_what_is_still_owned(error):
    stage = Stage()
    stage.assign(0)
    stage.finish(*stage.fetch(0, 1))
    stage.consumer.commit_errors = [error]
    stage.turn_later()
    stage.turn_later()
    assert stage.commits() == [[(0, 2)], [(0, 2)]]
    stage.turn_later()
    assert len(stage.commits()) == 2


def test_of_a_commit_whose_metadata_is_too_long_the_longest_map_is_cut():
    stage = Stage(buffer_records=1000, poll_records=1000)
    stage.assign(0, 1)
    regular, irregular = ([1, 3, 5], [n * n for n in range(1, 15)])
    for partition, offsets in enumerate((regular, irregular)):
        fetched = stage.fetch(*range(200), partition=partition)
        stage.finish(*(fetched[offset] for offset in offsets))
    stage.poller._turn()
    before = [owned.tracker.position().metadata for owned in stage.poller.owned()]
    stage.consumer.commit_errors = [KafkaError.OFFSET_METADATA_TOO_LARGE]
    stage.turn_later()
    after = [owned.tracker.position().metadata for owned in stage.poller.owned()]
    assert len(before[0]) < len(before[1])
    assert (after[0], len(after[1]) <= len(before[1]) // 2) == (before[0], True)


def test_a_map_that_fills_up_while_a_commit_is_under_way_stops_the_fetch():
    stage = Stage(buffer_records=1000, poll_records=1000, commit_map_bytes=64)
    stage.assign(0)
    stage.consumer.on_commit = lambda *_: None  # the broker is silent
    fetched = stage.fetch(*range(400))
    fetched[0].assignment.taken = 400
    stage.finish(fetched[1])
    stage.turn_later()
    assert not fetched[0].assignment.paused
    stage.finish(*(fetched[n * n] for n in range(2, 20)))
    stage.turn_later()
    stage.poller._turn()
    assert fetched[0].assignment.paused
    assert len(stage.commits()) == 1


def test_an_answer_to_a_commit_that_was_given_up_is_none_to_the_next_one():
    stage = Stage()
    stage.assign(0)
    first, second = stage.fetch(0, 1)
    stage.consumer.on_commit = lambda *_: None  # the broker is silent
    stage.finish(first)
    stage.turn_later()
    stage.finish(second)
    stage.turn_later(seconds=100.0)
    assert stage.commits() == [[(0, 1)], [(0, 2)]]
    stage.poller._commits.on_commit(None, [TopicPartition(LANE, 0, 1)])
    stage.turn_later()
    assert stage.commits()[2:] == [[(0, 2)]]


def test_a_full_partition_is_paused_and_resumed_under_half():
    stage = Stage(buffer_records=4)
    stage.assign(0, 1)
    fetched = stage.fetch(0, 1, 2, 3)
    assert stage.consumer.calls[-1] == ("pause", 0)
    where = fetched[0].assignment
    where.taken = 2
    stage.poller._turn()
    assert where.paused
    where.taken = 3
    stage.poller._turn()
    assert stage.consumer.calls[-1] == ("resume", 0)
    assert not where.paused


def test_partitions_share_the_memory_of_the_buffers_and_one_alone_may_take_what_is_spare():
    stage = Stage(buffer_records=1000, poll_records=1000, buffer_mib=1)
    stage.assign(0, 1)
    large = b"x" * 100_000  # five of them are a MiB
    (busy,) = {one.assignment for one in stage.fetch(0, 1, 2, value=large)}
    assert not busy.paused
    stage.fetch(3, 4, value=large)
    assert busy.paused
    (other,) = {one.assignment for one in stage.fetch(0, 1, partition=1, value=large)}
    assert not other.paused  # its share is free, whatever the busy one holds
    stage.fetch(2, partition=1, value=large)
    assert other.paused
    for fetched in (0, 1, 2):
        other.take(Fetched(other, fetched, large, None, 0.0))
    stage.poller._turn()
    assert (busy.paused, other.paused) == (True, False)


def test_a_partition_that_comes_back_is_read_although_it_went_away_paused():
    stage = Stage(buffer_records=4)
    stage.assign(0)
    (old, *_) = stage.fetch(0, 1, 2, 3)
    assert old.assignment.paused
    old.assignment.idle.set()
    stage.poller._on_revoke(stage.consumer, [TopicPartition(LANE, 0)])
    (new,) = stage.assign(0)
    assert not new.paused
    assert [one.offset for one in stage.fetch(0, 1)] == [0, 1]


def test_a_partition_whose_window_is_full_is_paused_until_its_head_is_finished():
    stage = Stage(buffer_records=100, window_records=3)
    stage.assign(0)
    fetched = stage.fetch(0, 1, 2)
    fetched[0].assignment.taken = 3
    stage.finish(fetched[1], fetched[2])
    stage.poller._turn()
    assert fetched[0].assignment.paused
    stage.finish(fetched[0])
    stage.poller._turn()
    assert not fetched[0].assignment.paused


def test_finished_records_of_the_committed_map_are_not_handed_over():
    stage = Stage()
    stage.consumer.stored[0] = TopicPartition(LANE, 0, 10, metadata=offset_map.encode(10, [(11, 12)]))
    stage.assign(0)
    assert stage.consumer.calls[0] == ("assign", [(0, 10)])
    assert [one.offset for one in stage.fetch(10, 11, 12, 13)] == [10, 13]


def test_foreign_metadata_costs_only_the_map():
    stage = Stage()
    stage.consumer.stored[0] = TopicPartition(LANE, 0, 10, metadata="not ours")
    stage.assign(0)
    assert [one.offset for one in stage.fetch(10, 11)] == [10, 11]


def failing(code):
    def answer(_partitions):
        raise KafkaException(KafkaError(code))

    return answer


def one_refused(partitions):
    *good, bad = partitions
    refusal = SimpleNamespace(topic=LANE, partition=bad.partition, error=KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT))
    return [*(TopicPartition(LANE, tp.partition, 7) for tp in good), refusal]


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(poller, "_RETRY_S", 0)


@pytest.mark.parametrize(
    "answers", [[failing(KafkaError._TIMED_OUT)] * 20, [failing(KafkaError.NOT_COORDINATOR)] * 20, [one_refused] * 3]
)
def test_committed_offsets_are_asked_for_until_each_partition_has_one(no_pauses, answers):
    stage = Stage()
    stage.consumer.stored = {p: TopicPartition(LANE, p, 10) for p in (0, 1)}
    stage.consumer.answers = [*answers]
    assert len(stage.assign(0, 1)) == 2
    assert stage.consumer.calls[0] == ("assign", [(0, 10), (1, 10)])


def test_an_outage_during_an_assignment_is_waited_for_as_long_as_it_lasts_and_is_no_stall(no_pauses):
    stage = Stage()
    stage.consumer.stored[0] = TopicPartition(LANE, 0, 10)

    def away(partitions):
        stage.clock.advance(100.0)
        return failing(KafkaError._TRANSPORT)(partitions)

    stage.consumer.answers = [away] * 10
    (assigned,) = stage.assign(0)
    assert stage.poller.turned_s == stage.clock.mono_s()
    assert assigned.tracker.goes_back(9)


@pytest.mark.parametrize("answer", [failing(KafkaError.GROUP_AUTHORIZATION_FAILED), one_refused])
def test_an_offset_that_is_refused_ends_the_process_and_names_the_partition(no_pauses, answer):
    stage = Stage()

    def refused(partitions):
        stage.clock.advance(10.0)
        return answer(partitions)

    stage.consumer.answers = [refused] * 10
    stage.poller._guarded(stage.poller._on_assign)(stage.consumer, [TopicPartition(LANE, 3)])
    with pytest.raises(DependencyDown, match=r"lanes\.default\.medium\.short \[3\]"):
        stage.poller._turn()
    assert len(stage.consumer.answers) == 6
    assert stage.consumer.calls == []


def test_the_end_of_the_process_does_not_wait_for_a_broker_that_is_away():
    stage = Stage()
    stage.poller._stopping.set()
    stage.consumer.answers = [failing(KafkaError._TIMED_OUT)]
    assert stage.assign(0) == []


def test_revocation_drains_commits_closes_and_lets_go_in_this_order():
    stage = Stage()
    stage.assign(0, 1)
    first, second = stage.fetch(0, 1)
    where = first.assignment
    where.inflight = 1

    def loop():
        while not stage.inbox:
            pass
        (release,) = stage.inbox.take()
        assert not where.closed
        where.release()
        stage.finish(first, second)
        where.finish_one()
        assert release.assignments == [where]

    thread = threading.Thread(target=loop)
    thread.start()
    stage.poller._on_revoke(stage.consumer, [TopicPartition(LANE, 0)])
    thread.join()
    assert stage.consumer.calls[-2:] == [("commit", [(0, 2)]), ("unassign", [0])]
    assert where.closed
    assert [owned.partition for owned in stage.poller.owned()] == [1]


def test_what_the_group_gives_while_the_process_ends_is_back_before_the_client_closes():
    def gives(consumer):
        consumer.held = [TopicPartition(LANE, 1)]

    def takes(consumer):
        consumer.calls.append("taken")
        consumer.held = []

    stage = Stage()
    stage.assign(0)
    stage.consumer.on_its_way = [gives, lambda _: None, takes]
    stage.poller._end()
    assert stage.consumer.calls[-3:] == ["unsubscribe", "taken", "close"]


def test_a_group_that_takes_nothing_back_does_not_keep_the_process():
    stage = Stage()
    stage.consumer.held = [TopicPartition(LANE, 0)]
    stage.consumer.on_its_way = [lambda _: stage.clock.advance(UNSUBSCRIBE_S + 1)]
    stage.poller._end()
    assert stage.consumer.calls[-1] == "close"


def test_a_drain_ends_at_its_deadline_and_commits_only_what_is_finished():
    stage = Stage(drain_deadline_s=0.05)
    stage.assign(0)
    first, second = stage.fetch(0, 1)
    first.assignment.inflight = 1
    stage.finish(first)
    stage.poller._on_revoke(stage.consumer, [TopicPartition(LANE, 0)])
    assert stage.commits() == [[(0, 1)]]
    stage.finish(second)
    stage.assign(0)
    stage.turn_later()
    assert len(stage.commits()) == 1  # a completion of the older epoch never commits


def test_a_long_request_holds_no_revocation_up_and_a_short_one_beside_it_is_waited_for():
    stage = Stage(drain_deadline_s=8.0)
    long, short = stage.assign(0, topic=LONG_LANE)[0], stage.assign(1)[-1]
    long.inflight = short.inflight = 1
    began_s = time.monotonic()

    def loop():
        while not stage.inbox:
            pass
        for assignment in stage.inbox.take()[0].assignments:
            assignment.release()
        assert not long.closed
        short.finish_one()

    thread = threading.Thread(target=loop)
    thread.start()
    stage.poller._on_revoke(stage.consumer, [TopicPartition(LONG_LANE, 0), TopicPartition(LANE, 1)])
    thread.join()
    assert time.monotonic() - began_s < 4.0
    assert (short.inflight, long.inflight, long.closed, stage.poller.owned()) == (0, 1, True, [])


def stage_of_loop(stage, act):
    """The loop's side in a thread: `act` gets each release until it returns True."""

    def loop():
        while True:
            for item in stage.inbox.take():
                if isinstance(item, Release) and act(item):
                    return

    thread = threading.Thread(target=loop)
    thread.start()
    return thread


def test_where_work_is_handed_over_a_long_has_until_the_deadline_and_is_aborted_before_the_commit():
    stage = Stage(drain_deadline_s=0.05, on_revoke="abort")
    (where,) = stage.assign(0, topic=LONG_LANE)
    where.inflight = 1
    seen = []

    def act(release):
        seen.append((release.aborts, where.closed, list(stage.commits())))
        where.release()
        if release.aborts:
            where.finish_one()
        return release.aborts

    thread = stage_of_loop(stage, act)
    stage.poller._on_revoke(stage.consumer, [TopicPartition(LONG_LANE, 0)])
    thread.join()
    assert seen == [(False, False, []), (True, False, [])]
    assert (where.closed, where.inflight, stage.consumer.calls[-1]) == (True, 0, ("unassign", [0]))


def test_what_ends_within_its_drain_is_not_aborted():
    stage = Stage(drain_deadline_s=8.0, on_revoke="abort")
    (where,) = stage.assign(0, topic=LONG_LANE)
    where.inflight = 1

    def act(_release):
        where.release()
        assert not where.idle.is_set()
        where.finish_one()
        return True

    thread = stage_of_loop(stage, act)
    stage.poller._on_revoke(stage.consumer, [TopicPartition(LONG_LANE, 0)])
    thread.join()
    assert not stage.inbox


def test_work_that_cannot_be_aborted_holds_no_revocation_up(monkeypatch):
    monkeypatch.setattr(poller, "HAND_OVER_S", 0.05)
    stage = Stage(drain_deadline_s=0.05, on_revoke="abort")
    (where,) = stage.assign(0)
    where.inflight = 1
    stage.poller._on_revoke(stage.consumer, [TopicPartition(LANE, 0)])
    assert (where.closed, stage.consumer.calls[-1]) == (True, ("unassign", [0]))


@pytest.mark.parametrize(("on_revoke", "aborts"), [("finish", False), ("abort", True)])
def test_what_runs_of_lost_partitions_is_aborted_only_where_it_is_handed_over(on_revoke, aborts):
    stage = Stage(on_revoke=on_revoke)
    stage.assign(0)
    stage.poller._on_lost(stage.consumer, [TopicPartition(LANE, 0)])
    assert stage.inbox.take()[-1].aborts is aborts


def test_a_revocation_of_longs_alone_still_waits_until_none_is_dispatched_any_more():
    assignment = Assignment(LONG_LANE, 0, Lane(Tier.MEDIUM, Length.LONG), OffsetTracker(None, [], window_records=9))
    assignment.inflight = 1
    assert not assignment.idle.is_set()
    assignment.release()
    assert assignment.idle.is_set()


def test_lost_partitions_are_not_committed():
    stage = Stage()
    stage.assign(0)
    stage.finish(*stage.fetch(0, 1))
    stage.poller._on_lost(stage.consumer, [TopicPartition(LANE, 0)])
    stage.turn_later()
    assert stage.commits() == []
    assert stage.consumer.calls[-1] == ("unassign", [0])
    assert isinstance(stage.inbox.take()[-1], Release)


def test_a_reset_log_begins_a_new_epoch_and_swallows_nothing():
    stage = Stage()
    stage.assign(0)
    (old,) = stage.fetch(7)
    (new,) = stage.fetch(0)
    assert new.assignment is not old.assignment
    assert old.assignment.closed
    stage.finish(old)
    stage.turn_later()
    assert stage.commits() == []
    stage.finish(new)
    stage.turn_later()
    assert stage.commits() == [[(0, 1)]]


def test_a_fetch_error_is_no_record_and_a_fatal_one_ends_the_thread():
    stage = Stage()
    stage.assign(0)
    passing = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    stage.consumer.ready = [Message(0, error=passing)]
    stage.poller._turn()
    assert stage.inbox.take() == []
    stage.consumer.ready = [Message(0, error=KafkaError(KafkaError._FATAL, "fenced"))]  # unmarked, as the client does
    with pytest.raises(KafkaException):
        stage.poller._turn()


def test_what_a_callback_raises_is_not_lost():
    stage = Stage()

    def broken(_consumer, _partitions):
        raise ValueError("a bug")

    stage.poller._guarded(broken)(stage.consumer, [])
    with pytest.raises(ValueError, match="a bug"):
        stage.poller._turn()


def test_the_lanes_that_are_served_are_told_to_the_group_once_and_when_they_change():
    stage = Stage()
    for _ in range(2):
        stage.poller._turn()
    stage.poller.served = (Lane(Tier.MEDIUM, Length.LONG),)
    for _ in range(2):
        stage.poller._turn()
    assert stage.consumer.subscriptions == [[LANE, LONG_LANE], [LONG_LANE]]
