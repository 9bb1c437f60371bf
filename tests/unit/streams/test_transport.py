"""Faust's transport, amended: the hand-over of records, how far it commits, and when partitions open."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace
from weakref import WeakSet

import pytest
from faust.types import TP
from mode.utils.locks import Event

from streams import fetching, transport

pytestmark = pytest.mark.asyncio


@pytest.fixture
def consumer():
    """Only what waiting needs; Faust builds the rest from a running application."""
    made = object.__new__(transport.Consumer)
    made._stopped, made._crashed, made._loop = Event(), Event(), None
    return made


async def _tasks_during(awaitable):
    before = asyncio.all_tasks()
    result = await awaitable
    return result, asyncio.all_tasks() - before


async def _at_once(value):
    return value


async def _after(event, seen):
    try:
        await event.wait()
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise
    await asyncio.sleep(0)
    seen.append("put")
    return "put"


async def test_a_hand_over_that_need_not_wait_takes_no_task_and_no_turn_of_the_loop(consumer):
    suspended, turns = asyncio.Event(), []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    found, tasks = await _tasks_during(consumer.wait_first(_at_once("put"), suspended.wait()))
    assert (["put"], False, set(), []) == (found.results, found.stopped, tasks, turns)


async def test_a_hand_over_that_waits_is_carried_on_where_it_stopped(consumer):
    room, seen = asyncio.Event(), []
    asyncio.get_running_loop().call_later(0.01, room.set)
    found = await consumer.wait_first(_after(room, seen), asyncio.Event().wait())
    assert ["put"] == found.results == seen


async def test_a_suspended_flow_ends_a_hand_over_that_waits(consumer):
    suspended, seen = asyncio.Event(), []
    asyncio.get_running_loop().call_later(0.01, suspended.set)
    found = await consumer.wait_first(_after(asyncio.Event(), seen), suspended.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (found.results, seen) == ([True], ["cancelled"])


async def test_a_stop_ends_a_hand_over_that_waits(consumer):
    seen = []
    asyncio.get_running_loop().call_later(0.01, consumer._stopped.set)
    found = await consumer.wait_first(_after(asyncio.Event(), seen), asyncio.Event().wait())
    assert found.stopped


async def test_an_error_of_the_hand_over_is_the_callers(consumer):
    async def fail(*waits):
        for wait in waits:
            await wait
        raise ValueError

    for waits in ((), (asyncio.sleep(0),)):
        with pytest.raises(ValueError):  # noqa: PT011 - the one raised above
            await consumer.wait_first(fail(*waits), asyncio.Event().wait())


TP0, TP1 = TP("requests", 0), TP("requests", 1)


class _Reads:
    """What Faust's driver does below: positions and reads of the broker."""

    def __init__(self, records):
        self.records, self.during, self.sought, self.waits_s = records, lambda: None, [], []

    async def getmany(self, wanted, timeout):  # noqa: ASYNC109 - the signature of the driver
        self.waits_s.append(timeout)
        self.during()
        return {tp: found for tp, found in self.records.items() if wanted is None or tp in wanted}

    def seek(self, tp, offset):
        self.sought.append((tp, offset))


@pytest.fixture
def reading(consumer, monkeypatch):
    """A consumer of two partitions that is assigned both and has committed nothing."""

    async def getmany(self, active_partitions, timeout):  # noqa: ASYNC109 - the signature of the driver
        return await self._thread.getmany(active_partitions, timeout)

    async def seek_to_committed(self):
        return dict(self.commits)

    base = transport.Consumer.__bases__[0]
    monkeypatch.setattr(base, "_getmany", getmany)
    monkeypatch.setattr(base, "seek_to_committed", seek_to_committed)
    monkeypatch.setattr(base, "assignment", lambda _: {TP0, TP1})
    topics = SimpleNamespace(acks_enabled_for=lambda topic: topic == TP0.topic)
    consumer.app = SimpleNamespace(topics=topics, consumer_generation_id=1)
    consumer._positions, consumer._opening, consumer.commits = defaultdict(transport.Position), set(), {}
    consumer._acked, consumer._acked_index = defaultdict(list), defaultdict(set)
    consumer._committed_offset, consumer._read_offset = defaultdict(lambda: None), defaultdict(lambda: None)
    consumer._unacked_messages, consumer._waiting_for_ack = WeakSet(), None
    consumer._paused_partitions, consumer._active_partitions = set(), {TP0, TP1}
    consumer._buffered_partitions = set()
    consumer.can_resume_flow, consumer.suspend_flow = Event(), Event()
    consumer._thread = _Reads({TP0: [record(5), record(6)], TP1: [record(8, TP1)]})
    return consumer


def record(offset, tp=TP0):
    fields = ("timestamp_type", "headers", "key", "value", "checksum", "serialized_key_size", "serialized_value_size")
    return SimpleNamespace(
        topic=tp.topic, partition=tp.partition, offset=offset, timestamp=1000, **dict.fromkeys(fields)
    )


def commit(reading):
    """As Faust does: what may be committed is remembered as committed."""
    found = reading._filter_committable_offsets([TP0])
    reading._committed_offset.update(found)
    return found.get(TP0)


@pytest.mark.parametrize(
    ("committed", "read", "finished", "expected"),
    [
        pytest.param(None, range(5), [1, 2, 3, 4], None, id="a fresh group"),
        pytest.param(0, range(10), [5, 6, 7, 8, 9], None, id="nothing committed yet"),
        pytest.param(2585, range(2585, 2590), [2586, 2587, 2588, 2589], None, id="one in work"),
        pytest.param(2585, range(2585, 2590), [2587, 2588, 2589], None, id="two in work"),
        pytest.param(None, [7, 9, 12], [9, 12], None, id="a fresh group on a log with a beginning that is gone"),
        pytest.param(31, [34, 35], [35], None, id="the first record lies behind a gap"),
        pytest.param(31, [34, 35, 40], [35, 34], 36, id="a gap before and one behind"),
        pytest.param(None, range(5), [0, 1, 3], 2, id="up to the first unfinished"),
        pytest.param(31, [31, 33, 36], [31, 33, 36], 37, id="all, with gaps"),
    ],
)
async def test_a_commit_never_passes_an_unfinished_record(reading, committed, read, finished, expected):
    reading._committed_offset[TP0] = committed or None  # Faust keeps 0 as None
    messages = {offset: reading._to_message(TP0, record(offset)) for offset in read}
    for offset in finished:
        reading.ack(messages[offset])
    assert commit(reading) == expected
    for message in messages.values():
        reading.ack(message)
    assert (commit(reading) or expected) == max(read) + 1
    assert not reading._positions[TP0]._open
    assert not reading._acked_index[TP0]


async def test_after_a_rebalance_what_was_finished_before_moves_no_commit_past_what_is_read_again(reading):
    before = [reading._to_message(TP0, record(offset)) for offset in (10, 11, 12)]
    reading.ack(before[1])
    reading.commits[TP0] = 10
    await reading.perform_seek()
    reading.ack(before[2])
    again = [reading._to_message(TP0, record(offset)) for offset in (10, 11, 12)]
    assert commit(reading) is None
    reading.ack(again[0])
    assert commit(reading) == 11
    reading.ack(again[1])
    assert commit(reading) == 13


async def test_the_reads_of_a_changelog_are_not_kept(reading):
    reading._to_message(TP("changelog", 0), record(1, TP("changelog", 0)))
    assert not reading._positions


async def test_partitions_open_only_when_the_flow_is_resumed(reading):
    reading.pause_partitions({TP0, TP1})
    reading.resume_partitions({TP0, TP1})
    assert (reading._active_partitions, reading._paused_partitions) == (set(), {TP0, TP1})
    reading.pause_partitions({TP1})
    reading.resume_flow()
    assert (reading._active_partitions, reading._paused_partitions) == ({TP0}, {TP1})


async def test_a_partition_that_was_taken_away_meanwhile_does_not_open(reading):
    gone = TP("requests", 2)
    reading.resume_partitions({gone})
    reading.resume_flow()
    assert gone not in reading._active_partitions


async def test_what_a_read_brings_of_a_partition_that_was_closed_meanwhile_is_put_back(reading):
    reading._thread.during = lambda: reading.pause_partitions({TP0})
    found = await reading._getmany(reading._active_partitions, 1.0)
    assert ({TP1}, [(TP0, 5)]) == (set(found), reading._thread.sought)


async def test_a_read_across_a_new_assignment_is_put_back_whole(reading):
    def reassign():
        reading._active_partitions = {TP0, TP1}

    reading._thread.during = reassign
    found = await reading._getmany(reading._active_partitions, 1.0)
    assert ({}, {(TP0, 5), (TP1, 8)}) == (found, set(reading._thread.sought))


async def test_a_read_without_a_partition_whose_buffer_is_full_is_short_since_it_will_soon_have_room(reading):
    await reading._getmany(reading._active_partitions, 1.0)
    reading._buffered_partitions.add(TP1)
    await reading._getmany({TP0}, 1.0)
    full, partial = reading._thread.waits_s
    assert partial <= full / 10


async def test_no_fetch_makes_an_emptied_partition_wait_and_aborted_records_are_skipped(monkeypatch):
    base = fetching.CommittedThread.__bases__[0]
    monkeypatch.setattr(base, "_create_worker_consumer", lambda *_: SimpleNamespace())
    made = fetching.CommittedThread._create_worker_consumer(object.__new__(fetching.CommittedThread), None)
    assert made._isolation_level == "read_committed"
    assert made._fetch_max_wait_ms <= 50
