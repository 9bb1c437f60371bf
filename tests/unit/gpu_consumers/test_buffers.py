from gpu_consumers.assignment import Assignment, Entry, Fetched
from gpu_consumers.buffers import Buffers
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy.batching import Ask
from gpu_consumers.policy.selection import Lane
from tests.support.builders import WALL_S, work
from topics.records import Length, Tier

SHORT = Lane(Tier.MEDIUM, Length.SHORT)
LONG = Lane(Tier.MEDIUM, Length.LONG)


def assignment(lane=SHORT, partition=0):
    return Assignment("lanes.x", partition, lane, OffsetTracker(None, [], window_records=10))


def entry(where, offset=0, *, at_s=WALL_S, **request):
    where.handed += 1
    made = work({"id": f"r{where.partition}-{offset}", **request})
    return Entry(Fetched(where, offset, b"", None, at_s), made, Ask(10, 10, 100.0))


def test_a_lane_gives_its_oldest_first_whatever_partition_it_came_from():
    buffers, one, two = Buffers(), assignment(), assignment(partition=1)
    late, early = entry(one, at_s=WALL_S + 5), entry(two, at_s=WALL_S + 1)
    buffers.add(late)
    buffers.add(early)
    assert buffers.head(SHORT) is early
    buffers.take(early)
    assert buffers.head(SHORT) is late


def test_lanes_are_told_apart_by_topic_not_by_the_labels_inside():
    buffers, where = Buffers(), assignment(LONG)
    buffers.add(entry(where))
    assert list(buffers.waiting()) == [LONG]


def test_records_and_units_fall_to_zero_when_all_is_taken():
    buffers, where = Buffers(), assignment()
    entries = [entry(where, offset) for offset in range(3)]
    for one in entries:
        buffers.add(one)
    assert (buffers.records, buffers.units, where.buffered) == (3, 300.0, 3)
    for one in entries:
        buffers.take(one)
    assert (buffers.records, buffers.units, where.buffered) == (0, 0.0, 0)
    assert list(buffers.waiting()) == []


def test_an_expired_entry_leaves_once():
    buffers, where = Buffers(), assignment()
    mortal, other = entry(where, 0, deadline_s=WALL_S + 1), entry(where, 1)
    buffers.add(mortal)
    buffers.add(other)
    assert buffers.take_expired(WALL_S, 10) == []
    assert not buffers.has_expired(WALL_S)
    assert buffers.has_expired(WALL_S + 1)
    assert buffers.take_expired(WALL_S + 1, 10) == [mortal]
    assert buffers.take_expired(WALL_S + 2, 10) == []
    assert buffers.head(SHORT) is other


def test_expiry_is_bounded_per_turn():
    buffers, where = Buffers(), assignment()
    for offset in range(5):
        buffers.add(entry(where, offset, deadline_s=WALL_S))
    assert len(buffers.take_expired(WALL_S, 3)) == 3
    assert len(buffers.take_expired(WALL_S, 3)) == 2


def test_what_is_put_back_keeps_its_place_and_leaves_once_more():
    buffers, where = Buffers(), assignment()
    first, second = entry(where, 0, at_s=WALL_S), entry(where, 1, at_s=WALL_S + 1)
    buffers.add(first)
    buffers.add(second)
    buffers.take(first)
    buffers.put_back([first])
    assert where.buffered == 2
    for expected in (first, second):
        assert buffers.head(SHORT) is expected
        buffers.take(expected)
    assert buffers.head(SHORT) is None


def test_released_assignments_are_dropped_and_stay_dropped():
    buffers, going, staying = Buffers(), assignment(), assignment(partition=1)
    dropped, taken, kept = entry(going, 0, deadline_s=WALL_S), entry(going, 1), entry(staying)
    for one in (dropped, taken, kept):
        buffers.add(one)
    buffers.take(taken)
    going.release()
    buffers.drop([going])
    buffers.put_back([taken])
    assert (buffers.records, going.buffered) == (1, 0)
    assert buffers.head(SHORT) is kept
    assert buffers.take_expired(WALL_S, 10) == []


def test_an_assignment_is_idle_once_released_and_nothing_is_in_flight():
    where = assignment()
    where.inflight = 1
    where.release()
    assert not where.idle.is_set()
    where.finish_one()
    assert where.idle.is_set()
    empty = assignment()
    empty.release()
    assert empty.idle.is_set()


def suspect(where, offset, **request):
    made = entry(where, offset, **request)
    made.is_suspect = True
    return made


def test_suspects_wait_apart_and_end_expire_and_leave_like_all_others():
    buffers, going, staying = Buffers(), assignment(), assignment(partition=1)
    mortal = suspect(staying, 0, deadline_s=WALL_S + 1)
    stopped, gone, left = suspect(staying, 1), suspect(going, 0), suspect(staying, 2)
    for one in (mortal, stopped, gone, left):
        buffers.add(one)
    assert (list(buffers.waiting()), buffers.suspects(), buffers.all()) == ([], *[[mortal, stopped, gone, left]] * 2)
    assert (buffers.records, buffers.groups.total(), buffers.lanes.total()) == (4, 0, 4)
    assert buffers.take_expired(WALL_S + 1, 10) == [mortal]
    buffers.cancel(lambda one: one is stopped)
    assert buffers.take_cancelled(10) == [stopped]
    buffers.drop([going])
    assert (buffers.suspects(), buffers.records, going.buffered, staying.buffered) == ([left], 1, 0, 1)


def test_a_suspect_that_is_put_back_is_there_once_and_not_on_its_lane():
    buffers, where = Buffers(), assignment()
    one = entry(where)
    buffers.add(one)
    buffers.take(one)
    one.is_suspect = True
    for _ in range(2):
        buffers.put_back([one])
        assert (buffers.head(SHORT), buffers.suspects(), buffers.all()) == (None, [one], [one])
        buffers.take(one)
    assert (buffers.records, buffers.groups.total(), buffers.lanes.total(), where.buffered) == (0, 0, 0, 0)
