"""What waits on each lane of each pool: read once, and shown as a table."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import sleep

from autoscaler.backlog import Backlog, BacklogReader
from topics.clock import SystemClock
from topics.errors import LagUnavailable
from topics.settings import Settings

READ_TIMEOUT_S = 5.0
TRIES = 6
RETRY_S = 0.5
_TITLES = ("POOL", "TIER", "LENGTH", "RECORDS", "COST UNITS", "OLDEST S")


@dataclass(frozen=True, slots=True)
class Row:
    """One lane.  `lag_records` are unfinished records, running ones included; cost is an estimate from recent ones."""

    pool: str
    tier: str
    length: str
    lag_records: int
    cost_units: float
    oldest_age_s: float


def read(settings: Settings) -> list[Row]:
    """Read every pool completely.  Raises LagUnavailable."""
    with BacklogReader(settings, SystemClock(), READ_TIMEOUT_S) as reader:
        return rows(_read_pool(reader, pool) for pool in settings.pools)


def rows(backlogs: Iterable[Backlog]) -> list[Row]:
    """A row for each lane of these readings."""
    return [
        Row(
            backlog.pool,
            lane.tier,
            lane.length,
            lane.lag_records,
            round(lane.cost_units, 1),
            round(lane.oldest_age_s, 3),
        )
        for backlog in backlogs
        for lane in backlog.lanes
    ]


def _read_pool(reader: BacklogReader, pool: str) -> Backlog:
    """Try a few times: a coordinator may just be starting, a new topic may have no leader yet."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(LagUnavailable):
            return reader.read(pool)
        sleep(RETRY_S)
    return reader.read(pool)


def render(rows: Sequence[Row]) -> str:
    """A table with one line per lane and one of sums per pool."""
    cells: list[tuple[str, ...]] = [_TITLES]
    for pool in dict.fromkeys(row.pool for row in rows):
        mine = [row for row in rows if row.pool == pool]
        cells += [_cells(row) for row in mine]
        cells.append(_cells(_sum(pool, mine)))
    widths = [max(len(line[column]) for line in cells) for column in range(len(_TITLES))]
    return "\n".join(_line(line, widths) for line in cells)


def _sum(pool: str, rows: Sequence[Row]) -> Row:
    oldest_age_s = max(row.oldest_age_s for row in rows)
    return Row(
        pool, "all", "all", sum(row.lag_records for row in rows), sum(row.cost_units for row in rows), oldest_age_s
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.pool,
        row.tier,
        row.length,
        f"{row.lag_records:,}",
        f"{row.cost_units:,.0f}",
        f"{row.oldest_age_s:,.1f}",
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Words to the left, numbers to the right."""
    words = [cell.ljust(width) for cell, width in zip(cells[:3], widths[:3], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[3:], widths[3:], strict=True)]
    return "  ".join([*words, *numbers])
