import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_consumers.offsets import OffsetTracker
from topics import offset_map
from topics.offset_map import MAX_BYTES


def tracker(committed=None, finished=(), window_records=100_000):
    return OffsetTracker(committed, list(finished), window_records=window_records)


def filled(*offsets, committed=None):
    made = tracker(committed)
    for offset in offsets:
        made.receive(offset)
    return made


def reopened(position, window_records=100_000):
    runs = offset_map.decode(position.offset, position.metadata)
    return OffsetTracker(position.offset, runs, window_records=window_records)


@pytest.mark.parametrize(
    ("received", "finished", "commit", "beyond"),
    [
        ([0, 1, 2], [0], 1, []),
        ([0, 1, 2], [0, 1, 2], 3, []),
        ([0, 1, 2], [2], 0, [(2, 2)]),
        ([0, 1, 2, 3], [1, 3], 0, [(1, 1), (3, 3)]),
        ([0, 1, 2, 3], [1, 3, 0], 2, [(3, 3)]),
        ([5, 9, 10], [5], 9, []),  # a gap cannot hold anything up
        ([5, 9, 12], [9, 12], 5, [(9, 12)]),  # a gap between finished ones belongs to the run
        ([5, 9], [5, 9], 10, []),
        ([0, 1], [0, 0, 0], 1, []),  # repeats change nothing
        (list(range(51)), list(range(1, 51)), 0, [(1, 50)]),
    ],
)
def test_the_commit_stops_at_the_first_unfinished_record(received, finished, commit, beyond):
    made = filled(*received)
    for offset in finished:
        made.finish(offset)
    position = made.position()
    assert position.offset == commit
    assert offset_map.decode(commit, position.metadata) == beyond


def test_nothing_to_commit_when_nothing_is_finished():
    assert filled(0, 1, 2).position() is None


def test_nothing_to_commit_again_after_the_broker_has_it():
    made = filled(0, 1)
    made.finish(0)
    made.committed(made.position())
    assert made.position() is None
    made.finish(1)
    assert made.position().offset == 2


def test_what_finished_while_a_commit_was_under_way_is_committed_next():
    made = filled(0, 1)
    made.finish(0)
    under_way = made.position()
    made.finish(1)
    made.committed(under_way)
    assert made.position().offset == 2


def test_a_later_assignment_skips_what_the_map_lists():
    first = filled(10, 11, 12, 13)
    first.finish(11)
    first.finish(13)
    second = reopened(first.position())
    assert [second.receive(offset) for offset in (10, 11, 12, 13, 14)] == [True, False, True, False, True]


def test_the_map_survives_until_its_records_come_again():
    first = filled(10, 11, 12, 13, 14)
    first.finish(12)
    first.finish(14)
    second = reopened(first.position())
    second.receive(10)
    second.finish(10)
    position = second.position()
    assert position.offset == 11
    assert offset_map.decode(11, position.metadata) == [(12, 12), (14, 14)]
    third = reopened(position)
    assert [third.receive(offset) for offset in (11, 12, 13, 14)] == [True, False, True, False]


def test_an_offset_before_the_expected_one_tells_of_a_reset_log():
    made = tracker(10)
    assert made.goes_back(9)
    assert not made.goes_back(10)
    made.receive(10)
    assert made.goes_back(10)
    assert not tracker().goes_back(0)


def test_a_full_window_stops_the_fetch_and_opens_again():
    made = tracker(window_records=3)
    for offset in range(3):
        made.receive(offset)
    made.finish(1)
    assert made.must_wait
    made.finish(0)
    assert not made.must_wait


def holes(count, spacing):
    """A stuck head, and `count` finished records at random distances up to `spacing`."""
    rng = random.Random(1)
    made = tracker()
    made.receive(0)
    offset, finished = 0, []
    for _ in range(count):
        offset += rng.randrange(2, spacing)
        made.receive(offset - 1)
        made.receive(offset)
        finished.append(offset)
    for one in finished:
        made.finish(one)
    return made


def test_a_map_that_nears_the_limit_stops_the_fetch_before_it_overflows():
    made = holes(3_300, 40)
    position = made.position()
    assert position is not None
    assert len(position.metadata) <= MAX_BYTES
    assert made.must_wait


def test_a_map_that_does_not_fit_is_cut_and_the_position_moves_all_the_same():
    made = holes(20_000, 40)
    position = made.position()
    listed = offset_map.decode(position.offset, position.metadata)
    assert MAX_BYTES * 0.8 < len(position.metadata) <= MAX_BYTES
    assert 500 < len(listed) < 20_000
    assert {first for first, _ in listed} <= made._finished
    assert made.must_wait
    made.committed(position)
    made.finish(0)
    made.finish(next(offset for offset in made._received if offset not in made._finished))
    assert made.position().offset > position.offset
    while made.unfinished:
        made.finish(next(offset for offset in made._received if offset not in made._finished))
    assert made.position().metadata == ""
    assert not made.must_wait


def test_a_crowded_map_of_an_earlier_assignment_stops_no_fetch_which_alone_can_empty_it():
    first = holes(3_300, 40)
    second = reopened(first.position())
    coming = list(first._received)
    while coming:
        for offset in coming[:50]:
            if second.receive(offset):
                second.finish(offset)
        coming = coming[50:]
        position = second.position()
        assert not second.must_wait
        assert len(position.metadata) <= MAX_BYTES
        second.committed(position)
    assert (position.offset, position.metadata) == (first._received[-1] + 1, "")


def test_a_broker_that_allows_shorter_maps_gets_shorter_ones():
    made = tracker()
    for offset in range(200):
        made.receive(offset)
    for offset in random.Random(1).sample(range(1, 200), 100):
        made.finish(offset)
    lengths = []
    while (position := made.position()).metadata:
        lengths.append(len(position.metadata))
        made.refused(position)
    assert lengths == sorted(set(lengths), reverse=True)
    assert len(lengths) < 10
    assert position.offset == 0


@settings(max_examples=200)
@given(st.data())
def test_the_position_never_passes_an_unfinished_record(data):
    gaps = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=60))
    offsets = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    made = filled(*offsets)
    finished = data.draw(st.lists(st.sampled_from(offsets), unique=True))
    for offset in finished:
        made.finish(offset)
    position = made.position()
    if not finished:
        assert position is None
        return
    unfinished = set(offsets) - set(finished)
    assert position.offset <= min(unfinished, default=offsets[-1] + 1)
    assert len(position.metadata) <= MAX_BYTES
    again = reopened(position)
    assert {offset for offset in offsets if offset >= position.offset and again.receive(offset)} == unfinished


@settings(max_examples=100)
@given(st.data())
def test_no_record_is_lost_over_many_restarts(data):
    total = 30
    ran = []
    committed = None
    for _ in range(total * 2):
        made = tracker() if committed is None else reopened(committed)
        start = 0 if committed is None else committed.offset
        todo = [offset for offset in range(start, total) if made.receive(offset)]
        if not todo:
            break
        some = data.draw(st.lists(st.sampled_from(todo), unique=True, min_size=1))
        for offset in some:
            made.finish(offset)
        ran += some
        committed = made.position()
    assert sorted(ran) == list(range(total))


def test_what_a_transaction_would_finish_counts_in_a_copy_alone():
    tracker = OffsetTracker(10, [], window_records=99)
    for offset in range(10, 15):
        tracker.receive(offset)
    tracker.finish(12)
    planned = tracker.with_finished([10, 14]).position()
    assert (planned.offset, offset_map.decode(11, planned.metadata)) == (11, [(12, 12), (14, 14)])
    before = tracker.position()
    assert (before.offset, offset_map.decode(10, before.metadata)) == (10, [(12, 12)])
    tracker.finish(10)
    tracker.finish(14)
    assert tracker.position() == planned
    tracker.committed(planned)
    assert tracker.position() is None
