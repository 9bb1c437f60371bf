"""What the command says: results on stdout, everything for people on stderr, progress fit for where it goes."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from topics.clock import Clock

PLAIN_EVERY_S = 5.0

Advance = Callable[[int, str], None]
"""Takes how much is done and a few words."""


class Output:
    """One command's voice.  With `as_json` stdout carries exactly one line of JSON, at the end."""

    def __init__(self, clock: Clock, *, as_json: bool = False) -> None:
        self._clock, self.as_json = clock, as_json
        no_color = "NO_COLOR" in os.environ
        self._err = Console(stderr=True, no_color=no_color, highlight=False, soft_wrap=True)
        self._out = Console(no_color=no_color, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line for people."""
        self._err.print(text, markup=False)

    def result(self, record: object) -> None:
        """The one line of JSON: of a mapping or a record."""
        sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
        sys.stdout.flush()

    def text(self, text: str, end: str = "\n") -> None:
        """Part of the answer itself; shown at once."""
        if not self.as_json:
            sys.stdout.write(text + end)
            sys.stdout.flush()

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A result for people; the first column, by which a row is asked for, is never cut."""
        if self.as_json:
            return
        table = Table(*columns, title=title, title_justify="left", show_header=any(columns))
        table.columns[0].min_width = max((len(row[0]) for row in rows), default=0)
        for row in rows:
            table.add_row(*map(escape, row))
        self._out.print(table)

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Advance]:
        """A bar on a terminal, elsewhere a plain line every few seconds."""
        if self._err.is_terminal:
            with Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=self._err,
                transient=True,
            ) as bar:
                task = bar.add_task(what, total=total, note="")
                yield lambda done, note: bar.update(task, completed=done, note=note)
        else:
            yield self._plain(what, total)

    def _plain(self, what: str, total: int) -> Advance:
        next_s, is_done = self._clock.mono_s() + PLAIN_EVERY_S, False

        def advance(done: int, note: str) -> None:
            nonlocal next_s, is_done
            if self._clock.mono_s() >= next_s or (done == total and not is_done):
                next_s, is_done = self._clock.mono_s() + PLAIN_EVERY_S, done == total
                self.say(f"{what}: {done} of {total} {note}".rstrip())

        return advance
