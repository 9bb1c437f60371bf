"""Faust's Kafka transport: commits that stay before what is unfinished, and a hand-over of records that costs no task.

Faust wraps the hand-over of each record to its stream into four tasks, and that is the larger part of what a record
costs it.  Nearly all end without waiting: they run in place, and only what has to wait is given to Faust.
"""

from collections import defaultdict, deque
from collections.abc import Coroutine, Generator, Iterable
from functools import partial
from types import CoroutineType
from typing import Any

import faust
from faust.transport.drivers import aiokafka
from faust.types import TP
from faust.types.tuples import ConsumerMessage
from mode.services import WaitResults

from streams import fetching

_PARTIAL_READ_S = 0.01


class Position:
    """How far a partition may be committed.  Invariant: never past a record that was read and is unfinished."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._open: deque[int] = deque()
        self._last = -1

    def read(self, offset: int) -> None:
        """Take note of a record; offsets may have gaps, and one that was read before is known already."""
        if offset > self._last:
            self._open.append(offset)
            self._last = offset

    def advance(self, finished: set[int]) -> int | None:
        """The offset behind the records that are finished from the first on, which leave `finished`; None without."""
        reached = None
        while self._open and self._open[0] in finished:
            offset = self._open.popleft()
            finished.remove(offset)
            reached = offset + 1
        return reached


class Consumer(aiokafka.Consumer):
    """Faust's consumer; differs in how it waits, in what it reads and commits, and in when it opens partitions.

    When acknowledgements come out of order, Faust commits past unfinished records: past any on a fresh group, past one
    otherwise.  Here what was read is remembered, and the commit stays before its first unfinished record.

    After a rebalance, Faust opens partitions, seeks, and then empties the agents' buffers: what was read in between
    would be marked as read and never be handled.  Here they open when the flow is resumed, which is after that.  And
    what a read brings of a partition that was closed while it waited is put back: Faust would drop it, and never read
    it again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._opening: set[TP] = set()
        self._positions: dict[TP, Position] = defaultdict(Position)

    async def perform_seek(self) -> None:
        """Begin again at the commits: what was read and is not committed will be read again."""
        await super().perform_seek()
        for state in (self._positions, self._acked, self._acked_index):
            state.clear()

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:
        committed = self._committed_offset[tp]
        if (committed is None or record.offset >= committed) and self.app.topics.acks_enabled_for(tp.topic):
            self._positions[tp].read(record.offset)
        return super()._to_message(tp, record)

    def _new_offset(self, tp: TP) -> int | None:
        self._acked[tp].clear()
        return self._positions[tp].advance(self._acked_index[tp])

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Nothing: positions know what was read, and so need not know what was not."""

    def pause_partitions(self, tps: Iterable[TP]) -> None:
        """Close them at once, also those that were about to open."""
        closing = set(tps)
        self._opening -= closing
        super().pause_partitions(closing)

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Open them when the flow is resumed."""
        self._opening |= set(tps)

    def resume_flow(self) -> None:
        """Open what waits for it, unless it was taken away meanwhile."""
        super().resume_partitions(self._opening & self.assignment())
        self._opening.clear()
        super().resume_flow()

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> dict[TP, list[Any]]:  # noqa: ASYNC109
        # A copy, since the set changes while the read waits, and an empty one would mean every partition.
        wanted = None if active_partitions is None else set(active_partitions)
        # A read never learns of a partition whose buffer has room again meanwhile: with one left out it must be short.
        timeout = min(timeout, _PARTIAL_READ_S) if self._buffered_partitions else timeout
        records = dict(await super()._getmany(wanted, timeout))
        is_current = active_partitions is None or active_partitions is self._active_partitions
        for tp in list(records):
            if not is_current or (active_partitions is not None and tp not in active_partitions):
                unread = records.pop(tp)
                if unread and tp in self.assignment():
                    self._thread.seek(tp, unread[0].offset)
        return records

    def _new_consumer_thread(self) -> fetching.CommittedThread:
        return fetching.CommittedThread(self, loop=self.loop, beacon=self.beacon)

    async def wait_first(self, *coros: Any, timeout: Any = None) -> WaitResults:  # noqa: ASYNC109 - Faust's signature
        """Wait until one of `coros` has ended, the service stops or crashes; at once when the first need not wait."""
        first, *others = coros
        if not isinstance(first, CoroutineType):
            return await super().wait_first(*coros, timeout=timeout)
        try:
            awaited = first.send(None)
        except StopIteration as end:
            _drop(others)
            return WaitResults([first], [end.value], stopped=False)
        except BaseException:
            _drop(others)
            raise
        return await super().wait_first(_Rest(first, awaited), *others, timeout=timeout)


def _drop(waits: Iterable[Any]) -> None:
    """Coroutines that nobody will await must be closed."""
    for wait in waits:
        if isinstance(wait, CoroutineType):
            wait.close()


class _Rest:
    """What is left of a coroutine that has already run up to its first wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], awaited: Any) -> None:
        self._coroutine, self._awaited = coroutine, awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self._awaited
        while True:
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - cancellation too belongs to the coroutine
                resume = partial(self._coroutine.throw, error)
            else:
                resume = partial(self._coroutine.send, None)
            try:
                awaited = resume()
            except StopIteration as end:
                return end.value


class Transport(aiokafka.Transport):
    """Faust's transport with the consumer above."""

    Consumer = Consumer


def of(app: faust.App) -> Transport:
    """The transport of an application, from its settings."""
    fetching.accept_any_header()
    return Transport(app.conf.broker_consumer, app)
