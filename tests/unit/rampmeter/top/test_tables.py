"""What is to be seen of a snapshot."""

import msgspec
import pytest

from rampmeter.top import tables
from rampmeter.top.snapshot import Lane, Unread
from rampmeter.top.tables import COLUMNS, FIRST, Kind, Tone, View
from tests.support.builders import WALL_S
from tests.support.top import CONSUMERS, TENANTS, blind, snapshot


def column(kind, title):
    return [one.title for one in COLUMNS[kind]].index(title)


def texts(kind, found, view=None):
    made = tables.table(kind, found, view or FIRST[kind])
    return [[cell.text for cell in row] for row in made.rows]


def values(kind, title, found=None, **view):
    at = column(kind, title)
    return [row[at] for row in texts(kind, found or snapshot(), View(at, **view))]


def test_numbers_begin_with_the_largest_and_words_with_a():
    assert values(Kind.CLASSES, "RECORDS")[:4] == ["210", "91", "55", "40"]
    assert values(Kind.CLASSES, "RECORDS", is_reversed=True)[-4:] == ["40", "55", "91", "210"]
    assert values(Kind.POOLS, "POOL") == ["cpu", "default"]
    assert values(Kind.POOLS, "POOL", is_reversed=True) == ["default", "cpu"]


def test_what_is_unknown_is_last_either_way():
    assert values(Kind.CONSUMERS, "TEMP") == ["88", "71", "71", "71", "-", "-"]
    assert values(Kind.CONSUMERS, "TEMP", is_reversed=True) == ["71", "71", "71", "88", "-", "-"]


def test_rows_are_those_with_the_words_whatever_their_case():
    view = View(0, needle="DeFault")
    made = tables.table(Kind.POOLS, snapshot(), view)
    assert (made.matching, made.total, len(made.rows)) == (1, 2, 1)
    assert tables.heading(Kind.POOLS, made, view) == "POOLS  1 of 2 with /DeFault"
    assert len(texts(Kind.CONSUMERS, snapshot(), View(0, needle="temperature"))) == 1
    assert texts(Kind.CONSUMERS, snapshot(), View(0, needle="31")) == []


def test_no_table_shows_a_zero_for_what_is_not_known():
    for kind in (Kind.CLASSES, Kind.POOLS):
        rows = tables.table(kind, blind(), FIRST[kind]).rows
        numbers = [cell for row in rows for cell, one in zip(row, COLUMNS[kind], strict=True) if one.is_number]
        assert {(cell.text, cell.tone) for cell in numbers} == {("-", Tone.QUIET)}
    for kind in (Kind.TENANTS, Kind.CONSUMERS):
        made = tables.table(kind, blind(), FIRST[kind])
        assert made.rows is None
        assert "unknown" in tables.heading(kind, made, FIRST[kind])


def test_what_could_not_be_read_is_said_with_its_reason():
    assert tables.blindness(blind().unread, WALL_S).splitlines()[:2] == [
        "cannot read lag of pool default: Local: Timed out (last read 12 s ago)",
        "cannot read telemetry: Local: Timed out (never read)",
    ]
    assert "\x1b" not in tables.blindness([Unread("x", "\x1b[2J")], WALL_S)


def test_an_empty_table_says_none():
    made = tables.table(Kind.TENANTS, snapshot(tenants=()), FIRST[Kind.TENANTS])
    assert tables.heading(Kind.TENANTS, made, FIRST[Kind.TENANTS]) == "TENANTS  none"


def test_a_table_is_bounded_and_says_so():
    lanes = tuple(Lane("default", "high", str(n), n) for n in range(tables.MAX_ROWS + 5))
    made = tables.table(Kind.CLASSES, snapshot(lanes=lanes), FIRST[Kind.CLASSES])
    assert len(made.rows) == tables.MAX_ROWS
    assert "the first 200 of 205" in tables.heading(Kind.CLASSES, made, FIRST[Kind.CLASSES])


@pytest.mark.parametrize(
    ("kind", "title", "loud"),
    [
        (Kind.POOLS, "READY", {"2 of 5"}),
        (Kind.TENANTS, "REFUSED", {"31%"}),
        (Kind.CONSUMERS, "MEM", {"97%"}),
        (Kind.CONSUMERS, "TEMP", {"88"}),
        (Kind.CONSUMERS, "STATE", {"silent", "closed by temperature"}),
    ],
)
def test_what_wants_somebody_is_loud(kind, title, loud):
    made = tables.table(kind, snapshot(), FIRST[kind])
    cells = [row[column(kind, title)] for row in made.rows]
    assert {cell.text for cell in cells if cell.tone is Tone.BAD} == loud


def test_a_pool_of_nobody_is_loud_when_work_waits():
    def ready(**fields):
        pool = msgspec.structs.replace(snapshot().pools[1], ready=0, **fields)
        return tables.table(Kind.POOLS, snapshot(pools=(pool,)), FIRST[Kind.POOLS]).rows[0][1].tone

    assert ready(lag_records=1) is Tone.BAD
    assert ready(lag_records=0) is Tone.QUIET


def test_nothing_of_a_record_reaches_the_terminal_as_an_order():
    tenants = (msgspec.structs.replace(TENANTS[0], tenant="\x1b]0;owned\x07"),)
    assert texts(Kind.TENANTS, snapshot(tenants=tenants))[0][0] == "\\x1b]0;owned\\x07"
    consumers = (msgspec.structs.replace(CONSUMERS[4], intake="\x1b[2J"),)
    assert texts(Kind.CONSUMERS, snapshot(consumers=consumers))[0][-1] == "\\x1b[2J"


def test_every_field_that_a_column_shows_is_one_of_its_rows():
    found = {
        Kind.CLASSES: snapshot().lanes, Kind.POOLS: snapshot().pools, Kind.TENANTS: TENANTS, Kind.CONSUMERS: CONSUMERS
    }  # fmt: skip
    for kind, columns in COLUMNS.items():
        assert {one.field for one in columns} <= set(found[kind][0].__struct_fields__)


def test_sorting_goes_on_to_the_next_column_and_round():
    view = FIRST[Kind.POOLS]
    for _ in COLUMNS[Kind.POOLS]:
        view = tables.next_column(Kind.POOLS, view)
    assert view == FIRST[Kind.POOLS]
    assert tables.by_column(tables.by_column(view, 2), 2) == View(2, is_reversed=True)
