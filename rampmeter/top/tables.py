"""The tables of `rampmeter top`: columns, order, filter and how a value is shown.  Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from rampmeter.columns import printable
from rampmeter.doctor.diagnosis import MEMORY_USED_RATIO, REFUSED_RATIO
from rampmeter.top.snapshot import Consumer, Pool, Snapshot, Unread

UNKNOWN = "-"
MAX_ROWS = 200
"""Rows of one table on the screen."""
HOT_C = 85.0
_MILLION = 1_000_000

Value = str | float | None


class Kind(StrEnum):
    """The tables, in their order."""

    CLASSES = "classes"
    POOLS = "pools"
    TENANTS = "tenants"
    CONSUMERS = "consumers"


class Tone(StrEnum):
    """How loud a cell is: `quiet` says nothing or unknown, `bad` wants somebody."""

    QUIET = "quiet"
    PLAIN = "plain"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Column:
    """A title, the field of a row that it shows, and how.  What is shown by `words` may say more than its field."""

    title: str
    field: str
    decimals: int | None = None
    """None: words."""
    is_ratio: bool = False
    words: Callable[[Any], str] | None = None

    @property
    def is_number(self) -> bool:
        """Whether it stands on the right, and the largest comes first."""
        return self.decimals is not None


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its tone."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class View:
    """How a person wants to see a table."""

    column: int
    is_reversed: bool = False
    """The other way round than the column's own: words from a, numbers from the largest."""
    needle: str = ""
    """Rows of which some word holds it; case does not matter."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table ready to be shown.  `rows` is None when it could not be read."""

    titles: tuple[str, ...]
    numbers: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...] | None
    matching: int
    total: int


def _ready_of(pool: Pool) -> str:
    if pool.ready is None:
        return UNKNOWN
    all_there = pool.ready + (pool.closed or 0) + (pool.draining or 0) + (pool.silent or 0)
    return f"{pool.ready}" if pool.ready == all_there else f"{pool.ready} of {all_there}"


def _state_of(consumer: Consumer) -> str:
    return consumer.intake or consumer.state if consumer.state == "closed" else consumer.state


COLUMNS: Mapping[Kind, tuple[Column, ...]] = {
    Kind.CLASSES: (
        Column("POOL", "pool"),
        Column("TIER", "tier"),
        Column("LENGTH", "length"),
        Column("RECORDS", "lag_records", 0),
        Column("UNITS", "cost_units", 0),
        Column("DRAIN S", "drain_s", 1),
        Column("AGE S", "oldest_age_s", 1),
        Column("IN/S", "arrived_per_s", 1),
        Column("OUT/S", "finished_per_s", 1),
    ),
    Kind.POOLS: (
        Column("POOL", "pool"),
        Column("READY", "ready", 0, words=_ready_of),
        Column("RECORDS", "lag_records", 0),
        Column("UNITS", "cost_units", 0),
        Column("DRAIN S", "drain_s", 1),
        Column("AGE S", "oldest_age_s", 1),
        Column("IN U/S", "arrived_units_per_s", 0),
        Column("MAX U/S", "capacity_units_per_s", 0),
    ),
    Kind.TENANTS: (
        Column("TENANT", "tenant"),
        Column("REQ/S", "requests_per_s", 1),
        Column("ASK U/S", "asked_units_per_s", 0),
        Column("SHARE", "asked_ratio", 0, is_ratio=True),
        Column("USE U/S", "used_units_per_s", 0),
        Column("REFUSED", "refused_ratio", 0, is_ratio=True),
        Column("WAIT", "waiting", 0),
    ),
    Kind.CONSUMERS: (
        Column("CONSUMER", "consumer"),
        Column("POOL", "pool"),
        Column("OWNS", "partitions", 0),
        Column("RUNS", "inflight_requests", 0),
        Column("KV", "kv_used_ratio", 0, is_ratio=True),
        Column("MEM", "gpu_memory_used_ratio", 0, is_ratio=True),
        Column("BUSY", "gpu_busy_ratio", 0, is_ratio=True),
        Column("TEMP", "gpu_temperature_c", 0),
        Column("AGE S", "age_s", 1),
        Column("STATE", "state", words=_state_of),
    ),
}
FIRST: Mapping[Kind, View] = {
    Kind.CLASSES: View(3), Kind.POOLS: View(0), Kind.TENANTS: View(2), Kind.CONSUMERS: View(0)
}  # fmt: skip


def next_column(kind: Kind, view: View) -> View:
    """Sort by the column to the right, in its own order."""
    return by_column(view, (view.column + 1) % len(COLUMNS[kind]))


def by_column(view: View, column: int) -> View:
    """Sort by this column; by the one that it is sorted by already, the other way round."""
    if column == view.column:
        return replace(view, is_reversed=not view.is_reversed)
    return replace(view, column=column, is_reversed=False)


def table(kind: Kind, snapshot: Snapshot, view: View) -> Table:
    """What is to be seen: sorted, unknown last either way; filtered; at most `MAX_ROWS`."""
    columns, chosen = COLUMNS[kind], COLUMNS[kind][view.column]
    is_falling = chosen.is_number != view.is_reversed
    titles = tuple(column.title + (("▼" if is_falling else "▲") if column is chosen else "") for column in columns)
    numbers = tuple(column.is_number for column in columns)
    found = _rows(kind, snapshot)
    if found is None:
        return Table(titles, numbers, None, 0, 0)
    matching = [row for row in found if _matches(row, columns, view.needle)]
    known = [row for row in matching if _value(row, chosen) is not None]
    unknown = [row for row in matching if _value(row, chosen) is None]
    known.sort(key=lambda row: _value(row, chosen), reverse=is_falling)  # type: ignore[arg-type, return-value]
    shown = (known + unknown)[:MAX_ROWS]
    cells = tuple(tuple(_cell(row, column) for column in columns) for row in shown)
    return Table(titles, numbers, cells, len(matching), len(found))


def heading(kind: Kind, made: Table, view: View) -> str:
    """A table's name, and what of it is not to be seen."""
    said = [kind.value.upper()]
    if made.rows is None:
        return f"{said[0]}  unknown: could not be read"
    if view.needle:
        said.append(f"{made.matching} of {made.total} with /{printable(view.needle)}")
    if len(made.rows) < made.matching:
        said.append(f"the first {len(made.rows)} of {made.matching}")
    if not made.rows:
        said.append("none")
    return "  ".join(said)


def blindness(unread: Sequence[Unread], now_s: float) -> str:
    """A line for each thing that could not be read, why, and since when it is so."""

    def since(one: Unread) -> str:
        return "never read" if one.last_s is None else f"last read {now_s - one.last_s:.0f} s ago"

    return "\n".join(f"cannot read {one.what}: {printable(one.why)} ({since(one)})" for one in unread)


def _rows(kind: Kind, snapshot: Snapshot) -> Sequence[object] | None:
    found: Mapping[Kind, Sequence[object] | None] = {
        Kind.CLASSES: snapshot.lanes,
        Kind.POOLS: snapshot.pools,
        Kind.TENANTS: snapshot.tenants,
        Kind.CONSUMERS: snapshot.consumers,
    }
    return found[kind]


def _matches(row: object, columns: Sequence[Column], needle: str) -> bool:
    words = [_text(row, column) for column in columns if not column.is_number]
    return any(needle.lower() in word.lower() for word in words)


def _value(row: object, column: Column) -> Value:
    value: Value = getattr(row, column.field)
    return value


def _text(row: object, column: Column) -> str:
    value = _value(row, column)
    if column.words is not None:
        return printable(column.words(row))
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return printable(value)
    if column.is_ratio:
        return f"{value:.0%}"
    return f"{value / _MILLION:,.1f}M" if value >= _MILLION else f"{value:,.{column.decimals or 0}f}"


def _cell(row: object, column: Column) -> Cell:
    value = _value(row, column)
    tone = _tone(row, column, value)
    is_nothing = value is None or (column.is_number and not value)
    return Cell(_text(row, column), Tone.QUIET if is_nothing and tone is Tone.PLAIN else tone)


def _tone(row: object, column: Column, value: Value) -> Tone:
    match row, column.field:
        case Pool(ready=ready, silent=silent, lag_records=records), "ready":
            return Tone.BAD if silent or (records and not ready) else Tone.PLAIN
        case Consumer(state=state), "state":
            return _STATES.get(state, Tone.BAD)
        case _, field if isinstance(value, float) and value > _LIMITS.get(field, value):
            return Tone.BAD
        case _:
            return Tone.PLAIN


_STATES = {"ready": Tone.PLAIN, "draining": Tone.WARN, "gone": Tone.QUIET}
_LIMITS = {"gpu_memory_used_ratio": MEMORY_USED_RATIO, "gpu_temperature_c": HOT_C, "refused_ratio": REFUSED_RATIO}
