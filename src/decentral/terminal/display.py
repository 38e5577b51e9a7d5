"""What is shown while something goes on: rows that are redrawn on a terminal, plain lines anywhere else, or nothing.

One run, many runs and the preparation of data are all shown by this. It is drawn by whoever computes, when there is
something new: no thread competes with the computation. Nothing that goes wrong with the terminal (a closed pipe, a full
disk under a log) stops it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from decentral.terminal.console import printable

if TYPE_CHECKING:
    from rich.table import Table

_BAR_WIDTH = 12
_LINES_BESIDE = 6  # of a terminal: those that are no rows


class Row(NamedTuple):
    """One thing that goes on: its title, where (or how far) it is, a bar, a few words, and the time left."""

    title: str
    place: str
    fraction: float | None = None
    """From 0 to 1; None if it is not known."""
    text: str = ""
    left: str = ""


def _unless_broken(show: Callable[..., None]) -> Callable[..., None]:
    """After something has gone wrong with the terminal once, nothing more is shown."""

    @wraps(show)
    def shown(self: Display, *what: Any) -> None:
        if not self.broken:
            try:
                show(self, *what)
            except (OSError, ValueError):  # ValueError: the stream is closed
                self.broken = True

    return shown


class Display:
    """Shows nothing, and is the common part of the others."""

    live = False
    """Whether rows are drawn."""
    silent = True
    """Whether nobody sees anything."""
    broken = False
    """Whether something has gone wrong with the terminal."""

    def line(self, text: str) -> None:
        """A line that stays."""

    def draw(self, rows: Sequence[Row], headline: str = "") -> None:
        """Show these rows, and nothing else, below a headline, if rows are drawn at all."""

    def close(self, last: str = "") -> None:
        """Leave the terminal as it was. The rows stay on a terminal, unless there is a `last` line in their place."""


class _Lines(Display):
    """Lines only."""

    silent = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @_unless_broken
    def line(self, text: str) -> None:
        print(printable(text), file=self._stream, flush=True)


class _Table(Display):
    """A table on a terminal, with lines that scroll away above it."""

    live, silent = True, False

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=stream), auto_refresh=False)
        self._live.start()

    @_unless_broken
    def line(self, text: str) -> None:
        self._live.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    @_unless_broken
    def draw(self, rows: Sequence[Row], headline: str = "") -> None:
        from rich.console import Group
        from rich.text import Text

        rows = [row._replace(title=printable(row.title), text=printable(row.text)) for row in rows]
        above = [Text(printable(headline), style="bold", no_wrap=True, overflow="ellipsis")] if headline else []
        self._live.update(Group(*above, self._table(rows)), refresh=True)

    @_unless_broken
    def close(self, last: str = "") -> None:
        self._live.transient = bool(last)
        self._live.stop()
        if last:
            self.line(last)

    def _table(self, rows: Sequence[Row]) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for column in range(5):
            table.add_column(no_wrap=True, overflow="ellipsis", justify="right" if column == 4 else "left")
        shown = rows[: max(1, self._live.console.height - _LINES_BESIDE)]
        for row in shown:
            bar = ProgressBar(total=1.0, completed=row.fraction or 0.0, width=_BAR_WIDTH)
            table.add_row(Text(row.title), Text(row.place), bar, Text(row.text), Text(row.left))
        if len(shown) < len(rows):
            table.add_row(Text(f"and {len(rows) - len(shown)} more"))
        return table


def display(enabled: bool = True, stream: TextIO | None = None) -> Display:
    """Rows on `stream` (stdout) if it is a terminal, lines elsewhere; nothing unless `enabled`."""
    stream = stream or sys.stdout
    if not enabled or stream is None:  # stdout was closed before the start
        return Display()
    return _Table(stream) if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" else _Lines(stream)


@contextmanager
def counted(title: str, total: int, show: bool = True) -> Iterator[Callable[[], None]]:
    """Yields a function to call after each task: a bar on a terminal, else a line before and a line after."""
    shown, done = display(show), 0

    def advance() -> None:
        nonlocal done
        done += 1
        shown.draw([Row(title, f"{done}/{total}", done / total)])

    if not shown.live:
        shown.line(f"{title} ...")
    try:
        yield advance
        if not shown.live:
            shown.line(f"{title}: done.")
    finally:
        shown.close()


@contextmanager
def unless_quick(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with how much more is done: every five seconds stderr says how far it is, unless all is
    done by then."""
    shown, done, next_s = Display(), 0, time.monotonic() + 5

    def advance(more: int = 1) -> None:
        nonlocal shown, done, next_s
        done += more
        if time.monotonic() < next_s or (done >= total and type(shown) is Display):
            return
        next_s = time.monotonic() + 5
        shown = display(stream=sys.stderr) if type(shown) is Display else shown
        if shown.live:
            shown.draw([Row(title, f"{done / total:.0%}", done / total)])
        else:
            shown.line(f"{title}: {done / total:.0%}")

    try:
        yield advance
    finally:
        shown.close()


def clock(seconds: float) -> str:
    """Minutes and seconds, '3:07', or with hours, '1:02:03'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
