"""The settle agent: what attempts really cost settles their reservations, is remembered, and teaches the estimates."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from faust.types import EventT

from streams import metrics
from streams.budgets import Budgets, Charge, Settled
from streams.estimates import Estimates
from streams.journal import Journal
from streams.learning import Learning
from streams.limits import LiveLimits
from streams.outbox import Outgoing
from streams.policy import settlement
from streams.recall import Recall
from streams.served import Served
from streams.settings import StreamsSettings
from streams.tables import Rows, Spend, spend_key
from streams.tracing import Tracing
from topics import codec
from topics.clock import Clock
from topics.outcomes import Outcome
from topics.records import Usage

Settle = Callable[[list[EventT]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Settling:
    """What the settle agent works with."""

    settings: StreamsSettings
    clock: Clock
    budgets: Budgets
    send: Callable[[Sequence[Outgoing]], Awaitable[None]]
    """Returns when the broker has the records."""
    bury: Callable[[EventT], Awaitable[None]]
    """Dead-letters a record that nobody can read."""
    rows: Rows
    estimates: Estimates
    limits: LiveLimits
    recall: Recall
    by: str


@dataclass(frozen=True, slots=True)
class _Charged:
    event: EventT
    usage: Usage
    units: float
    settled: Settled


def settling(parts: Settling) -> Settle:
    """The handler of a micro-batch of usage.

    Order of effects: the charge (once per id and attempt), the rows, then all sends, then the caller acknowledges.  A
    batch that is read again after a death finds its charges made, and is not counted in rows a second time.
    """
    journal = Journal(parts.settings, parts.clock, parts.by)
    learning = Learning(parts.settings, parts.clock, parts.rows, parts.estimates)
    tracing = Tracing(parts.settings)
    served = Served(parts.settings.streams, parts.limits)

    async def handle(batch: list[EventT]) -> None:
        since_s = parts.clock.wall_s()
        charged = await _charge(parts, await _read(parts, batch))
        counted = [one for one in charged if one.settled.result != "repeat"]
        for one in charged:
            metrics.SETTLED.labels(one.settled.result).inc()
        for one in counted:
            _measure(one)
            served.add(one.usage, one.units, parts.rows.at_s(one.event))
        _write(parts.rows, counted)
        estimates = learning.take([(one.event, one.usage) for one in counted])
        records = [journal.settlement(one.usage, one.units, one.settled) for one in charged]
        balances = parts.budgets.take_balances()
        if balances is not None:
            records.append(journal.balances(balances))
        records += [learning.record(estimate) for estimate in estimates]
        if records:
            await parts.send(records)
        for estimate in estimates:
            parts.estimates.note(estimate)
        tracing.settled(batch, since_s, parts.clock.wall_s())

    return handle


async def _read(parts: Settling, batch: Iterable[EventT]) -> list[tuple[EventT, Usage]]:
    usages = []
    for event in batch:
        try:
            usages.append((event, codec.decode_usage(event.message.value or b"")))
        except codec.UNREADABLE:
            await parts.bury(event)
    return usages


async def _charge(parts: Settling, usages: Sequence[tuple[EventT, Usage]]) -> list[_Charged]:
    if not usages:
        return []
    units = [settlement.real_units(usage, parts.settings.models) for _, usage in usages]
    made = None
    while made is None:
        memory = await parts.budgets.remembered()
        is_known = await parts.recall.settled([usage for _, usage in usages], memory)
        made = await parts.budgets.try_settle(
            [
                _as_charge(usage, cost)
                for (_, usage), cost, known in zip(usages, units, is_known, strict=True)
                if not known
            ],
            memory,
        )
    results = iter(made)
    settled = [Settled("repeat", 0.0) if known else next(results) for known in is_known]
    return [_Charged(*pair, cost, result) for pair, cost, result in zip(usages, units, settled, strict=True)]


def _as_charge(usage: Usage, units: float) -> Charge:
    return Charge(
        id=usage.id,
        attempt=usage.attempt,
        units=units,
        partial=usage.partial,
        reserved_units=usage.reserved_units,
        tenant=usage.tenant,
        pool=usage.pool,
        priority=usage.priority,
        lane=f"{usage.priority}.{usage.length}",
    )


def _measure(one: _Charged) -> None:
    usage = one.usage
    metrics.SPENT_UNITS.labels(usage.pool).inc(one.units)
    metrics.KV_TOKEN_S.labels(usage.pool).inc(usage.kv_token_s or 0.0)
    if usage.outcome is not Outcome.COMPLETED or usage.partial:
        return
    if usage.expected_output_tokens:
        metrics.OUTPUT_ERROR.labels(usage.length).observe(usage.tokens.output / usage.expected_output_tokens)
    if usage.reserved_units > 0:
        metrics.COST_ERROR.labels(usage.length).observe(one.units / usage.reserved_units)


def _write(rows: Rows, counted: Iterable[_Charged]) -> None:
    """Add up by partition, window and key, so that each row is written once a batch."""
    sums: dict[tuple[object, ...], tuple[EventT, str, Spend]] = {}
    for one in counted:
        key = spend_key(one.usage)
        place = (one.event.message.partition, rows.spend_window(one.event), key)
        _, _, spent = sums.setdefault(place, (one.event, key, Spend()))
        spent.add(one.usage, one.units)
    for event, key, spent in sums.values():
        rows.spend(event, key, spent)
