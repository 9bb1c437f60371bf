"""The screen, by a pilot's keys."""

from contextlib import asynccontextmanager

import pytest
from textual.coordinate import Coordinate

from rampmeter.top.app import Top
from rampmeter.top.tables import Kind
from tests.support.clock import FakeClock
from tests.support.top import blind, snapshot


@asynccontextmanager
async def screen(size=(140, 40), follow=lambda _: None, shown=None):
    top = Top(follow, FakeClock(), "kafka:9092")
    async with top.run_test(size=size) as pilot:
        top.take(shown or snapshot())
        await pilot.pause()
        yield top, pilot


def column(top, kind, number=0):
    table = top._panels[kind].table
    return [str(table.get_cell_at(Coordinate(row, number))) for row in range(table.row_count)]


def text(top):
    """All that is on the screen."""
    return "\n".join("".join(segment.text for segment in line) for line in top.screen._compositor.render_strips())


def visible(top):
    return {kind for kind, panel in top._panels.items() if panel.display}


@pytest.mark.asyncio
async def test_a_wide_screen_shows_all_and_a_narrow_one_the_pools_and_what_was_chosen():
    async with screen() as (top, _):
        assert visible(top) == set(Kind)
        assert all(f" {word} " in text(top) for word in ("loud-team", "gpu-5f7c9-h0t22", "medium", "102,876"))
    async with screen((80, 24)) as (top, pilot):
        assert visible(top) == {Kind.POOLS, Kind.CLASSES}
        await pilot.press("4")
        assert visible(top) == {Kind.POOLS, Kind.CONSUMERS}
        await pilot.press("2")
        assert visible(top) == {Kind.POOLS, Kind.CONSUMERS}


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_the_keys_are_said_and_every_column_fits(size):
    async with screen(size) as (top, pilot):
        for key, kind in zip("1234", Kind, strict=True):
            await pilot.press(key)
            await pilot.pause()
            reason = len("closed by temperature") - len("draining")  # why a consumer is closed may be long
            assert top._panels[kind].table.max_scroll_x <= (reason if kind is Kind.CONSUMERS else 0), kind
        for word in ("1 classes", "2 pools", "3 tenants", "4 consumers", "s sort", "r reverse", "/ filter", "p pause",
                     "q quit"):  # fmt: skip
            assert word in text(top)


@pytest.mark.asyncio
async def test_sorting_is_by_keys_and_by_the_mouse():
    async with screen() as (top, pilot):
        await pilot.press("2", "r")
        assert column(top, Kind.POOLS) == ["default", "cpu"]
        await pilot.press("s", "s")
        assert column(top, Kind.POOLS, 2) == ["411", "0"]
        table = top._panels[Kind.TENANTS].table
        await pilot.click(table, offset=(2, 0))
        await pilot.pause()
        assert column(top, Kind.TENANTS) == ["(others)", "loud-team", "my-team", "search"]


@pytest.mark.asyncio
async def test_a_filter_holds_while_it_is_typed_and_until_it_is_dropped():
    async with screen() as (top, pilot):
        await pilot.press("3", "slash", *"team")
        assert column(top, Kind.TENANTS) == ["loud-team", "my-team"]
        await pilot.press("enter", "r")
        assert column(top, Kind.TENANTS) == ["my-team", "loud-team"]
        top.take(snapshot())
        assert len(column(top, Kind.TENANTS)) == 2
        assert len(column(top, Kind.CONSUMERS)) == 6
        await pilot.press("slash", "escape")
        assert len(column(top, Kind.TENANTS)) == 4


@pytest.mark.asyncio
async def test_a_pause_freezes_what_is_shown_and_says_so():
    async with screen() as (top, pilot):
        await pilot.press("p")
        top.take(snapshot(tenants=()))
        await pilot.press("3", "r")
        assert column(top, Kind.TENANTS, 0)[-1] == "loud-team"
        assert "PAUSED" in text(top)
        await pilot.press("p")
        await pilot.pause()
        assert column(top, Kind.TENANTS) == []
        assert "PAUSED" not in text(top)


@pytest.mark.asyncio
async def test_what_cannot_be_read_is_on_the_screen_with_its_reason():
    async with screen(shown=blind()) as (top, pilot):
        assert "cannot read telemetry: Local: Timed out" in text(top)
        assert "CONSUMERS  unknown" in text(top)
        assert set(column(top, Kind.CLASSES, 3)) == {"-"}
        top.take(snapshot())
        await pilot.pause()
        assert "cannot read" not in text(top)


@pytest.mark.asyncio
async def test_what_is_shown_bears_its_age():
    async with screen() as (top, pilot):
        top._clock.advance(40)
        top._show_status()
        await pilot.pause()
        assert "read 40 s ago" in text(top)


@pytest.mark.asyncio
async def test_a_table_stays_where_it_is_scrolled_to():
    async with screen((80, 12)) as (top, pilot):
        await pilot.press("down", "down", "down")
        await pilot.pause()
        top.take(snapshot())
        await pilot.pause()
        assert top._panels[Kind.CLASSES].table.scroll_offset.y == 3


def fails(_top):
    raise RuntimeError("no such thing")


@pytest.mark.asyncio
async def test_a_fault_of_who_follows_ends_the_screen_and_is_not_swallowed():
    top = Top(fails, FakeClock(), "kafka:9092")
    async with top.run_test() as pilot:
        while top.return_value is None:
            await pilot.pause(0.01)
    assert str(top.return_value) == "no such thing"
