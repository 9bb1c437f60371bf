"""The Faust agents: one per landing, deferred and retries topic, one for usage.  Concurrency 1, acknowledged in order.

Each does the same: take a micro-batch, let it be carried out, acknowledge.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import faust
import msgspec
from faust.tables.wrappers import WindowWrapper
from faust.types import EventT, StreamT
from structlog import get_logger

from streams import metrics
from streams.admit import Admission
from streams.apply import Writer
from streams.batches import done, make_current, micro_batches
from streams.budgets import Budgets
from streams.intake import Candidate, Landed, Pricing
from streams.outbox import Outgoing
from streams.policy import settlement
from streams.progress import Progress
from streams.settings import StreamsSettings
from streams.tables import Spend, spend_key
from topics import catalog, codec, process
from topics.clock import Clock
from topics.outcomes import Reason
from topics.records import DeadLetter, Length, Origin, Priority, Usage, Work

_log = get_logger()

Handle = Callable[[list[EventT]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the agents of one process share."""

    settings: StreamsSettings
    clock: Clock
    pricing: Pricing
    admission: Admission
    budgets: Budgets
    writer: Writer
    progress: Progress


def register(app: faust.App, parts: Parts, spend: WindowWrapper) -> None:
    """Create every agent of the worker."""
    settings = parts.settings
    for priority in Priority:
        for length in Length:
            _agent(app, parts, catalog.landing(settings, priority, length), _intake(parts, priority, length))
    for delay_s in settings.topics.defer_delays_s:
        _agent(app, parts, catalog.deferred(settings, delay_s), _delayed(parts, delay_s, parts.admission.run))
    for delay_s in settings.topics.retry_delays_s:
        _agent(app, parts, catalog.retries(settings, delay_s), _delayed(parts, delay_s, _again(parts)))
    _agent(app, parts, settings.topic("usage"), _settle(parts, spend))


def _agent(app: faust.App, parts: Parts, topic: str, handle: Handle) -> None:
    channel = app.topic(
        topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", allow_empty=True
    )
    limit = parts.settings.streams.batch_events
    name = topic.removeprefix(parts.settings.topics.prefix)

    async def run(stream: StreamT) -> None:
        async for batch in micro_batches(cast(faust.Stream, stream), limit):
            with parts.progress.batch(name):
                await _carry_out(handle, batch, name)
            done(batch)
            metrics.BATCH_EVENTS.labels(name).observe(len(batch))

    app.agent(channel, name=name, concurrency=1)(run)


async def _carry_out(handle: Handle, batch: list[EventT], agent: str) -> None:
    """A failure here is a bug, and it must end the process at once.

    Faust would start the agent again behind this batch and commit past it.
    """
    try:
        await handle(batch)
    except Exception:  # noqa: BLE001 - the process ends with it
        message = batch[0].message
        _log.exception("agent_failed", agent=agent, partition=message.partition, offset=message.offset)
        os._exit(process.EXIT_BUG)


def _intake(parts: Parts, priority: Priority, length: Length) -> Handle:
    async def handle(batch: list[EventT]) -> None:
        await parts.admission.run([parts.pricing.read(_landed(event), priority, length) for event in batch])

    return handle


def _delayed(parts: Parts, delay_s: int, carry_out: Callable[[Sequence[Candidate]], Awaitable[None]]) -> Handle:
    """Hold each record until `delay_s` after it was written.  The delay is equal for all, so the head is next due."""

    async def handle(batch: list[EventT]) -> None:
        while batch:
            now_s = parts.clock.wall_s()
            due = [event for event in batch if event.message.timestamp + delay_s <= now_s]
            if due:
                await carry_out(await _works(parts, due))
                batch = [event for event in batch if event not in due]
            else:
                await asyncio.sleep(min(e.message.timestamp for e in batch) + delay_s - now_s + 0.001)

    return handle


def _again(parts: Parts) -> Callable[[Sequence[Candidate]], Awaitable[None]]:
    """Put failed attempts back on a lane: their reservation still holds."""

    async def carry_out(candidates: Sequence[Candidate]) -> None:
        await parts.admission.send([parts.writer.lane(c.item) for c in candidates if isinstance(c.item, Work)])

    return carry_out


def _settle(parts: Parts, spend: WindowWrapper) -> Handle:
    async def handle(batch: list[EventT]) -> None:
        usages = [(event, usage) for event in batch if (usage := await _usage(parts, event)) is not None]
        models = parts.settings.models
        units = [
            settlement.real_units(u, models[u.model]) if u.model in models else u.reserved_units for _, u in usages
        ]
        results = await parts.budgets.settle([usage.id for _, usage in usages], units) if usages else []
        rows: dict[tuple[int, float, str], Spend] = defaultdict(Spend)
        events: dict[tuple[int, float, str], EventT] = {}
        window_s = parts.settings.streams.spend_window_s
        for (event, usage), cost_units, result in zip(usages, units, results, strict=True):
            metrics.SETTLED.labels(result).inc()
            if result == "repeat":
                continue
            metrics.SPENT_UNITS.labels(usage.pool).inc(cost_units)
            row = (event.message.partition, event.message.timestamp // window_s, spend_key(usage))
            rows[row].add(usage, cost_units)
            events[row] = event
        for row, spent in rows.items():
            make_current(events[row])
            key = row[2]
            spend[key] = spent.onto(spend[key].value())

    return handle


def _landed(event: EventT) -> Landed:
    message = event.message
    headers = message.headers or ()
    pairs = tuple(headers.items()) if isinstance(headers, Mapping) else headers
    return Landed(_origin(event), message.value, message.key, pairs, message.timestamp)


def _origin(event: EventT) -> Origin:
    message = event.message
    return Origin(topic=message.topic, partition=message.partition, offset=message.offset)


async def _works(parts: Parts, events: Sequence[EventT]) -> list[Candidate]:
    candidates = []
    for event in events:
        try:
            candidates.append(Candidate(codec.decode_work(event.message.value or b"")))
        except msgspec.MsgspecError:
            await _bury(parts, event)
    return candidates


async def _usage(parts: Parts, event: EventT) -> Usage | None:
    try:
        return codec.decode_usage(event.message.value or b"")
    except msgspec.MsgspecError:
        await _bury(parts, event)
        return None


async def _bury(parts: Parts, event: EventT) -> None:
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
    record: Outgoing = parts.writer.dead_letter(letter, event.message.key)
    await parts.admission.send([record])
