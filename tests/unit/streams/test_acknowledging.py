"""Acknowledgements in the order of reading, whatever finishes first."""

import asyncio
from itertools import permutations
from types import SimpleNamespace

import pytest
from faust.types import TP

from streams.acknowledging import InOrder

A, B = TP("requests", 0), TP("requests", 1)


class Acknowledged(list):
    """Events of a log, and what was acknowledged of them."""

    def events(self, tp, *offsets, generation=1):
        return [self._event(tp, offset, generation) for offset in offsets]

    def _event(self, tp, offset, generation):
        message = SimpleNamespace(tp=tp, offset=offset, generation_id=generation)
        return SimpleNamespace(message=message, ack=lambda: self.append((tp.partition, offset)))


@pytest.fixture
def acknowledged():
    return Acknowledged()


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_a_partition_is_acknowledged_up_to_its_first_unfinished_event(acknowledged, order):
    ours, events = InOrder(), acknowledged.events(A, 0, 1, 2, 3)
    ours.add(events)
    for count, at in enumerate(order, start=1):
        ours.done(events[at])
        finished = set(order[:count])
        prefix = next((n for n in range(4) if n not in finished), 4)
        assert acknowledged == [(0, offset) for offset in range(prefix)]
        assert ours.pending == 4 - prefix


def test_partitions_do_not_wait_for_each_other(acknowledged):
    ours, slow, quick = InOrder(), acknowledged.events(A, 7), acknowledged.events(B, 3, 4)
    ours.add([*slow, *quick])
    for event in quick:
        ours.done(event)
    assert (acknowledged, ours.pending) == ([(1, 3), (1, 4)], 1)


def test_events_may_have_gaps_between_their_offsets_and_come_in_several_batches(acknowledged):
    ours, first, second = InOrder(), acknowledged.events(A, 5, 9), acknowledged.events(A, 40)
    ours.add(first)
    ours.add(second)
    for event in (second[0], first[1], first[0]):
        ours.done(event)
    assert (acknowledged, ours.pending) == ([(0, 5), (0, 9), (0, 40)], 0)


def test_what_was_read_before_a_rebalance_holds_up_nothing_that_was_read_after(acknowledged):
    ours, before = InOrder(), acknowledged.events(A, 5, 6, generation=1)
    ours.add(before)
    again = acknowledged.events(A, 5, 6, generation=2)
    ours.add(again)
    for event in (again[0], again[1]):
        ours.done(event)
    assert acknowledged == [(0, 5), (0, 6)]
    ours.done(before[1])
    assert len(acknowledged) == 2, "its predecessor is unfinished"
    ours.done(before[0])
    assert (acknowledged, ours.pending) == ([(0, 5), (0, 6)] * 2, 0)


@pytest.mark.asyncio
async def test_room_is_there_as_soon_as_the_head_is_done(acknowledged):
    ours, events = InOrder(), acknowledged.events(A, 0, 1, 2)
    await asyncio.wait_for(ours.wait_room(1), 1)
    ours.add(events)
    waits = [asyncio.create_task(ours.wait_room(limit)) for limit in (4, 3, 1)]

    async def have_room():
        for _ in range(3):
            await asyncio.sleep(0)
        return [wait.done() for wait in waits]

    assert await have_room() == [True, False, False]
    ours.done(events[2])
    assert await have_room() == [True, False, False]
    ours.done(events[0])
    assert await have_room() == [True, True, False]
    ours.done(events[1])
    assert await have_room() == [True, True, True]


def test_nothing_is_kept_of_what_was_acknowledged(acknowledged):
    ours, events = InOrder(), acknowledged.events(A, *range(100))
    ours.add(events)
    for event in reversed(events):
        ours.done(event)
    assert not ours._waiting
    assert not ours._finished
