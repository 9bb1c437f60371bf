"""The screen of `rampmeter top`.  It shows what it is handed and decides nothing."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.message import Message
from textual.widgets import DataTable, Footer, Input, Static

from rampmeter.top import tables
from rampmeter.top.snapshot import Snapshot
from rampmeter.top.tables import FIRST, Kind, Table, Tone, View
from topics.clock import Clock

STYLES = {Tone.QUIET: "dim", Tone.PLAIN: "", Tone.WARN: "yellow", Tone.BAD: "bold red"}
WIDE = 140
"""Columns from which on all tables are on the screen; below it the pools and one more."""


class Panel(Vertical):
    """A heading and a table."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(id=kind.value)
        self.kind = kind
        self._heading = Static(classes="heading", markup=False)
        self.table = DataTable[Text](cursor_type="none", zebra_stripes=True)

    def compose(self) -> ComposeResult:
        """Lay out."""
        yield self._heading
        yield self.table

    def fill(self, made: Table, heading: str) -> None:
        """Replace all of it where it is scrolled to."""
        self._heading.update(heading)
        shown, place = self.table, self.table.scroll_offset
        shown.clear(columns=True)
        for title, is_number in zip(made.titles, made.numbers, strict=True):
            shown.add_column(_text(title, "", is_number=is_number))
        for row in made.rows or ():
            pairs = zip(row, made.numbers, strict=True)
            shown.add_row(*(_text(cell.text, STYLES[cell.tone], is_number=is_number) for cell, is_number in pairs))
        shown.scroll_to(place.x, place.y, animate=False)


def _text(text: str, style: str, *, is_number: bool) -> Text:
    return Text(text, style, justify="right" if is_number else "left")


class News(Message):
    """A snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class Fault(Message):
    """Why there will be no more snapshots."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class Words(Input):
    """Where the filter is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "keep the words"),
        Binding("escape", "app.drop_filter", "show all rows"),
    ]


class Top(App[Exception]):
    """Shows the last snapshot that it was given; ends with what `follow` raised, if it did."""

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]
    CSS = """
    Screen { layout: vertical; }
    #status { height: 1; background: $primary; color: $text; padding: 0 1; }
    #status.-paused { background: $warning; }
    #blind { height: auto; max-height: 6; background: $error; color: $text; padding: 0 1; display: none; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    .heading { height: 1; padding: 0 1; text-style: bold; color: $text-muted; }
    Panel.-chosen .heading { background: $secondary; color: $text; }
    DataTable { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; background: $surface; }
    #tables { height: 1fr; }
    #pools { height: auto; max-height: 8; }
    #pools DataTable { height: auto; max-height: 7; }
    .-narrow Panel { display: none; }
    .-narrow #pools, .-narrow Panel.-seen { display: block; }
    .-wide #tables { layout: grid; grid-size: 2 3; grid-columns: 74 1fr; grid-rows: auto 3fr 2fr; grid-gutter: 0 1; }
    .-wide #pools { column-span: 2; }
    .-wide #consumers { column-span: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"choose('{kind}')", kind.value) for n, kind in enumerate(Kind, 1)),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "drop_filter", "all rows", show=False),
        Binding("p", "pause", "pause"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, follow: Callable[["Top"], None], clock: Clock, where: str) -> None:
        """`where` names the broker; `follow` runs in a thread and hands over snapshots by `tell` until it is `over`."""
        super().__init__()
        self._run_follow, self._clock, self._where = follow, clock, where
        self.over = threading.Event()
        self._views = dict(FIRST)
        self._chosen = Kind.CLASSES
        self._last: Snapshot | None = None
        self.shown: Snapshot | None = None
        """What is on the screen: the last one, or that of the moment of the pause."""
        self.is_paused = False
        # Kept, since a tick may come when the screen has been taken down already.
        self._status, self._blind = Static(id="status", markup=False), Static(id="blind", markup=False)
        self._filter = Words(id="filter", placeholder="words that a row must hold")
        self._panels = {kind: Panel(kind) for kind in (Kind.POOLS, Kind.CLASSES, Kind.TENANTS, Kind.CONSUMERS)}

    def compose(self) -> ComposeResult:
        """Lay out."""
        yield self._status
        yield self._blind
        yield Container(*self._panels.values(), id="tables")
        yield self._filter
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Begin to read."""
        self.action_choose(Kind.CLASSES)
        self.set_interval(1.0, self._show_status)
        self._show_status()
        threading.Thread(target=self._follow, name="top-reader", daemon=True).start()

    def on_unmount(self) -> None:
        """Read no more; nobody waits for a broker that does not answer."""
        self.over.set()

    def _follow(self) -> None:
        try:
            self._run_follow(self)
        except Exception as error:  # noqa: BLE001 - whoever runs the screen raises it
            self.post_message(Fault(error))

    def tell(self, snapshot: Snapshot) -> None:
        """Have it shown; from any thread, also when the screen is gone already."""
        self.post_message(News(snapshot))

    def on_news(self, news: News) -> None:
        """Show it."""
        self.take(news.snapshot)

    def on_fault(self, fault: Fault) -> None:
        """End with it."""
        self.exit(fault.error)

    def take(self, snapshot: Snapshot) -> None:
        """A new snapshot is there; shown at once unless paused."""
        self._last = snapshot
        if not self.is_paused:
            self.shown = snapshot
            self._show_tables()
        self._show_status()

    def _show_tables(self) -> None:
        with self.batch_update():
            for kind in Kind:
                self._show_table(kind)

    def _show_table(self, kind: Kind) -> None:
        if self.shown is not None:
            made = tables.table(kind, self.shown, self._views[kind])
            self._panels[kind].fill(made, tables.heading(kind, made, self._views[kind]))

    def _show_status(self) -> None:
        said = [f"rampmeter top  {self._where}"]
        blind = ""
        if self.shown is None:
            said.append("reading ...")
        else:
            said.append(f"read {max(0.0, self._clock.wall_s() - self.shown.at_s):.0f} s ago")
            blind = tables.blindness(self.shown.unread, self.shown.at_s)
        said += ["PAUSED"] if self.is_paused else []
        self._status.update("  ".join(said))
        self._status.set_class(self.is_paused, "-paused")
        self._blind.update(blind)
        self._blind.display = bool(blind)

    def _view(self, view: View) -> None:
        self._views[self._chosen] = view
        self._show_table(self._chosen)

    def action_choose(self, kind: str) -> None:
        """Sort and filter this table from now on."""
        self._chosen = Kind(kind)
        for panel in self._panels.values():
            panel.set_class(panel.kind is self._chosen, "-chosen")
            if self._chosen is not Kind.POOLS:  # these are always on the screen, beside the one chosen last
                panel.set_class(panel.kind is self._chosen, "-seen")
        self._panels[self._chosen].table.focus()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._view(tables.next_column(self._chosen, self._views[self._chosen]))

    def action_reverse(self) -> None:
        """Sort the other way round."""
        view = self._views[self._chosen]
        self._view(tables.by_column(view, view.column))

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the column that was clicked."""
        panel = event.data_table.parent
        if isinstance(panel, Panel):
            self.action_choose(panel.kind)
            self._view(tables.by_column(self._views[panel.kind], event.column_index))

    def action_filter(self) -> None:
        """Ask for words."""
        self._filter.value = self._views[self._chosen].needle
        self._filter.display = True
        self._filter.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._view(replace(self._views[self._chosen], needle=event.value.strip()))

    def on_input_submitted(self) -> None:
        """Keep the words."""
        self._filter.display = False
        self._panels[self._chosen].table.focus()

    def action_drop_filter(self) -> None:
        """Show all rows again."""
        self._filter.value = ""
        self._view(replace(self._views[self._chosen], needle=""))
        self.on_input_submitted()

    def action_pause(self) -> None:
        """Freeze what is on the screen, or show the last again; reading goes on."""
        self.is_paused = not self.is_paused
        if not self.is_paused and self._last is not None:
            self.shown = self._last
            self._show_tables()
        self._show_status()
