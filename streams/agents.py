"""The Faust agents: one per landing class, deferred and retries topic, one for usage.  Concurrency 1.

Each does the same: take a micro-batch and let it be carried out.  A record is acknowledged when all that came of it is
with the broker, and in order.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import faust
from faust.types import EventT, StreamT
from structlog import get_logger

from streams import metrics
from streams.acknowledging import InOrder
from streams.admit import Admission
from streams.apply import Writer
from streams.batches import headers_of, micro_batches
from streams.holding import Pending
from streams.intake import Candidate, Landed, Pricing
from streams.policy import admission
from streams.progress import Progress
from streams.pump import Pump
from streams.settings import StreamsSettings
from streams.settle import Settle
from topics import catalog, codec, process
from topics.clock import Clock
from topics.outcomes import Reason
from topics.records import DeadLetter, Length, Origin, Priority, Work

_log = get_logger()

Handle = Callable[[list[EventT], InOrder], Awaitable[None]]
"""Carries a batch out, and tells of each event when it is done, perhaps after it returned."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the agents of one process share."""

    settings: StreamsSettings
    clock: Clock
    pricing: Pricing
    admission: Admission
    pump: Pump
    writer: Writer
    progress: Progress


def register_intake(app: faust.App, parts: Parts) -> None:
    """Create the agents of what lands: all that a shadow has."""
    for priority in Priority:
        for length in Length:
            topics = _landings(parts.settings, priority, length)
            _agent(app, parts, list(topics), _intake(parts, priority, length, topics))


def register(app: faust.App, parts: Parts, settle: Settle) -> None:
    """Create every agent of a worker that serves."""
    settings = parts.settings
    register_intake(app, parts)
    for delay_s in settings.topics.defer_delays_s:
        _agent(app, parts, [catalog.deferred(settings, delay_s)], _delayed(parts, delay_s, parts.pump.carry_out))
    for delay_s in settings.topics.retry_delays_s:
        _agent(app, parts, [catalog.retries(settings, delay_s)], _delayed(parts, delay_s, _again(parts)))
    _agent(app, parts, [settings.topic("usage")], _settle(settle))


def _agent(app: faust.App, parts: Parts, topics: list[str], handle: Handle) -> None:
    channel = app.topic(
        *topics, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", allow_empty=True
    )
    section = parts.settings.streams
    name = topics[0].removeprefix(parts.settings.topics.prefix)

    async def run(stream: StreamT) -> None:
        order = InOrder()
        async for batch in micro_batches(cast(faust.Stream, stream), section.batch_events):
            order.add(batch)
            with parts.progress.batch(name), ending_the_process(name, batch[0]):
                await handle(batch, order)
            metrics.BATCH_EVENTS.labels(name).observe(len(batch))
            await order.wait_room(section.unacknowledged_events)

    app.agent(channel, name=name, concurrency=1)(run)


class ending_the_process:  # noqa: N801 - reads as the statement it stands in
    """A failure here is a bug, and it must end the process at once.

    Faust would start the agent again behind this batch and commit past it.
    """

    def __init__(self, agent: str, first: EventT | None = None) -> None:
        self._agent, self._first = agent, first

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if kind is None or not issubclass(kind, Exception):
            return
        message = None if self._first is None else self._first.message
        where = {} if message is None else {"partition": message.partition, "offset": message.offset}
        _log.error("agent_failed", agent=self._agent, exc_info=error, **where)
        os._exit(process.EXIT_BUG)


def _landings(settings: StreamsSettings, priority: Priority, length: Length) -> dict[str, str | None]:
    """The landing topics of a class, the shared one first, each with the tenant that it belongs to, if it has one."""
    spots = catalog.landings(settings)
    return {spot.topic: spot.tenant for spot in spots if (spot.priority, spot.length) == (priority, length)}


def _intake(parts: Parts, priority: Priority, length: Length, tenants: Mapping[str, str | None]) -> Handle:
    async def handle(batch: list[EventT], order: InOrder) -> None:
        await parts.pump.carry_out(
            [
                Pending(
                    parts.pricing.read(_landed(event), priority, length, tenants[event.message.topic]),
                    partial(order.done, event),
                )
                for event in batch
            ]
        )

    return handle


def _delayed(parts: Parts, delay_s: int, carry_out: Callable[[Sequence[Pending]], Awaitable[None]]) -> Handle:
    """Hold each record until `delay_s` after it was written.  The delay is equal for all, so the head is next due."""

    async def handle(batch: list[EventT], order: InOrder) -> None:
        while batch:
            now_s = parts.clock.wall_s()
            due = [event for event in batch if event.message.timestamp + delay_s <= now_s]
            if due:
                await carry_out(await _works(parts, due, order))
                batch = [event for event in batch if event not in due]
            else:
                # No longer than the delay, whatever a sender's clock says.
                wait_s = min(e.message.timestamp for e in batch) + delay_s - now_s + 0.001
                await asyncio.sleep(min(delay_s, wait_s))
                if wait_s > delay_s:
                    await carry_out(await _works(parts, batch, order))
                    return

    return handle


def _again(parts: Parts) -> Callable[[Sequence[Pending]], Awaitable[None]]:
    """Put failed attempts back on a lane, behind what waits there: their reservation still holds."""

    async def carry_out(pendings: Sequence[Pending]) -> None:
        works = [pending.candidate.item for pending in pendings]
        await parts.admission.put_back([work for work in works if isinstance(work, Work)])
        for pending in pendings:
            pending.done()

    return carry_out


def _settle(settle: Settle) -> Handle:
    async def handle(batch: list[EventT], order: InOrder) -> None:
        await settle(batch)
        for event in batch:
            order.done(event)

    return handle


def _landed(event: EventT) -> Landed:
    message = event.message
    return Landed(_origin(event), message.value, message.key, headers_of(event), message.timestamp)


def _origin(event: EventT) -> Origin:
    message = event.message
    return Origin(topic=message.topic, partition=message.partition, offset=message.offset)


async def _works(parts: Parts, events: Sequence[EventT], order: InOrder) -> list[Pending]:
    pendings = []
    for event in events:
        try:
            work = codec.decode_work(event.message.value or b"")
        except codec.UNREADABLE:
            await bury(parts, event)
            order.done(event)
            continue
        if work.price.pool in parts.settings.pools:
            pendings.append(Pending(Candidate(work), partial(order.done, event)))
        else:
            await parts.admission.end([work], admission.POOL_GONE)
            order.done(event)
    return pendings


async def bury(parts: Parts, event: EventT) -> None:
    """Dead-letter an internal record that no one of ours can have written."""
    origin, value = _origin(event), event.message.value
    letter = DeadLetter(
        topic=origin.topic,
        partition=origin.partition,
        offset=origin.offset,
        reason=Reason.UNDECODABLE,
        detail="not a record of this topic",
        sha256=codec.digest(value),
        size_bytes=len(value or b""),
        at_s=parts.clock.wall_s(),
        by="streams",
    )
    metrics.DEAD_LETTERS.labels(Reason.UNDECODABLE).inc()
    await parts.admission.send([parts.writer.dead_letter(letter, event.message.key)])
