"""One reading as the page shows it, made from what each source last said.  Pure; what is unknown is None, never 0."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from autoscaler.admissions import Before
from rampmeter.console.budgets import Level, Name
from rampmeter.console.fleet import ConsumerLine, lines_of, served_by
from rampmeter.console.settings import Console
from rampmeter.console.sources import Decided, Views
from rampmeter.console.tally import OTHER, WINDOW_S, Scaling, largest
from rampmeter.console.watch import Seen
from rampmeter.control import Limit
from rampmeter.lag import Row
from rampmeter.spending import Spend
from topics.telemetry import Telemetry


class SourceLine(msgspec.Struct, frozen=True):
    """When a source was last read, and what keeps it from being read now."""

    name: str
    good_s: float | None
    problem: str | None


class LaneLine(msgspec.Struct, frozen=True):
    """What is not finished on a lane; `drain_s` is the time of the whole pool that this work takes."""

    tier: str
    length: str
    records: int
    units: float
    drain_s: float | None
    oldest_s: float


class PoolLine(msgspec.Struct, frozen=True):
    """A pool.  `drain_s` is of all that waits, on its lanes and before them."""

    name: str
    lanes: list[LaneLine] | None
    records: int | None
    oldest_s: float | None
    held_units: float | None
    held_drain_s: float | None
    drain_s: float | None
    serving: int | None
    """Consumers that take work."""
    units_per_s: float | None
    """What they serve."""
    is_measured: bool
    """By consumers while work waited; else it is what the autoscaler reckons with."""
    pause: str | None


class Lately(msgspec.Struct, frozen=True):
    """What a tenant asked for and used, in the last minute."""

    asked_units_per_s: float
    used_units_per_s: float
    requests: int
    rejected: int


class BudgetLine(msgspec.Struct, frozen=True):
    """A budget as it holds, and how full it is."""

    level: str
    name: str
    refill_units_per_s: float | None
    units: float | None
    """What is left now; below zero is debt."""
    cap_units: float | None
    pause: str | None = None
    change: str | None = None
    lately: Lately | None = None


class Page(msgspec.Struct, frozen=True):
    """All but the charts."""

    now_s: float
    sources: list[SourceLine]
    pools: list[PoolLine]
    budgets: list[BudgetLine]
    """Global, pools and classes."""
    tenants: list[BudgetLine]
    """Those with the most, then `(other)` if there are more."""
    consumers: list[ConsumerLine] | None
    consumers_left_out: int
    scaling: Sequence[Scaling] | None


def page(views: Views, pools: Iterable[str], own: Console, now_s: float) -> Page:
    """What holds now."""
    reports, told = views.consumers.value, views.decisions.value
    limits = [] if views.orders.value is None else views.orders.value.limits
    told_s = _as_of(views.consumers, now_s)
    consumers = None if reports is None else lines_of(reports, told_s)
    return Page(
        now_s,
        [SourceLine(seen.name, seen.good_s, seen.problem) for seen in views.all()],
        [_pool(name, views, _pauses(limits), told_s) for name in pools],
        [_budget(limit, views.budgets.value) for limit in limits if limit.level != "tenant"],
        [] if told is None else _tenants(told.told.tenants, limits, views.budgets.value or {}, own.tenants),
        None if consumers is None else consumers[: own.consumers],
        0 if consumers is None else max(0, len(consumers) - own.consumers),
        None if told is None else told.told.scaling,
    )


def _as_of(seen: Seen[list[Telemetry]], now_s: float) -> float:
    """While consumers cannot be heard they are not silent: their silence counts up to the last good reading."""
    return now_s if seen.problem is None or seen.good_s is None else seen.good_s


def _pool(name: str, views: Views, pauses: Mapping[Name, str], told_s: float) -> PoolLine:
    decided, reports = views.decisions.value, views.consumers.value
    serving, measured = (None, None) if reports is None else served_by(reports, name, told_s)
    units_per_s = _reckoned(decided, name, serving) if measured is None else measured
    lanes = None if views.lanes.value is None else [row for row in views.lanes.value.rows if row.pool == name]
    held_units = None if decided is None else sum(decided.before.get(name, Before()).held_units)
    waiting_units = None if lanes is None or held_units is None else held_units + sum(row.cost_units for row in lanes)
    return PoolLine(
        name,
        None if lanes is None else [_lane(row, units_per_s) for row in lanes],
        None if lanes is None else sum(row.lag_records for row in lanes),
        None if lanes is None else max((row.oldest_age_s for row in lanes), default=0.0),
        held_units,
        drain_s(held_units, units_per_s),
        drain_s(waiting_units, units_per_s),
        serving,
        units_per_s,
        measured is not None,
        pauses.get(("pool", name)),
    )


def _reckoned(decided: Decided | None, pool: str, serving: int | None) -> float | None:
    """What so many serve by the autoscaler's last decision; unknown without one."""
    scaling = () if decided is None else decided.told.scaling
    each = next((one.inputs.get("replica_units_per_s") for one in scaling if one.pool == pool), None)
    return each * serving if isinstance(each, int | float) and serving is not None else None


def _lane(row: Row, units_per_s: float | None) -> LaneLine:
    drained_s = drain_s(row.cost_units, units_per_s)
    return LaneLine(row.tier, row.length, row.lag_records, row.cost_units, drained_s, row.oldest_age_s)


def drain_s(units: float | None, units_per_s: float | None) -> float | None:
    """Time to serve this; 0 of nothing, unknown of something at an unknown rate, or at none."""
    if units is None or units == 0:
        return units
    return units / units_per_s if units_per_s else None


def _pauses(limits: Iterable[Limit]) -> dict[Name, str]:
    return {(limit.level, limit.name): limit.pause.by for limit in limits if limit.pause is not None}


def _budget(limit: Limit, levels: Mapping[Name, Level] | None, spend: Spend | None = None) -> BudgetLine:
    level = (levels or {}).get((limit.level, limit.name))
    return BudgetLine(
        limit.level,
        limit.name,
        limit.refill_units_per_s,
        None if level is None else level.units,
        limit.cap_units,
        None if limit.pause is None else limit.pause.by,
        None if limit.order is None else limit.order.by,
        None if spend is None else _lately(spend),
    )


def _tenants(
    spends: Mapping[str, Spend], limits: Iterable[Limit], levels: Mapping[Name, Level], count: int
) -> list[BudgetLine]:
    """Those with the most; then, while there is room, those that have a budget or an order of their own."""
    named = {limit.name: limit for limit in limits if limit.level == "tenant"}
    held = sorted((name for name in named if name != "*"), key=lambda name: (named[name].pause is None, name))
    shown = list(dict.fromkeys([*largest(spends, count), *held]))[:count]
    found = [_tenant(name, spends.get(name, Spend()), named, levels) for name in shown]
    rest = Spend()
    for name in spends.keys() - set(shown):
        rest.add(spends[name])
    if rest.requests or rest.used_units:
        found.append(BudgetLine("tenant", OTHER, None, None, None, lately=_lately(rest)))
    return found


def _tenant(name: str, spend: Spend, named: Mapping[str, Limit], levels: Mapping[Name, Level]) -> BudgetLine:
    limit = named.get(name) or named.get("*")
    if limit is None:  # orders were not read yet
        return BudgetLine("tenant", name, None, None, None, lately=_lately(spend))
    return _budget(msgspec.structs.replace(limit, name=name), levels, spend)


def _lately(spend: Spend) -> Lately:
    return Lately(spend.asked_units / WINDOW_S, spend.used_units / WINDOW_S, spend.requests, spend.rejected)
