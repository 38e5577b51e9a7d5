"""Progress bars by rich on a terminal, lines elsewhere, or nothing.

One run, many runs and the preparation of data are all shown by this. The code that computes draws it: no thread
competes with the computation. A closed pipe or a full disk under a log ends the display, not the run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TextIO

from decentral.terminal.console import printable

_BAR_WIDTH = 12
_SPEED_S = 600.0  # the time left follows from the speed of these last seconds


class Row(NamedTuple):
    """One bar: a title, the share that is done, and a few words."""

    title: str
    fraction: float | None = None
    """The share, from 0 to 1; None if unknown."""
    text: str = ""


class Display:
    """Bars on `stream` (stdout) if it is a terminal, lines elsewhere, and nothing unless `enabled`."""

    def __init__(self, enabled: bool = True, stream: TextIO | None = None) -> None:
        self._stream = (stream or sys.stdout) if enabled else None  # stdout may have been closed before the start
        terminal = self._stream is not None and self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.live = terminal
        """True if bars are drawn."""
        if terminal:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

            text = TextColumn("{task.fields[text]}", markup=False)
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(_BAR_WIDTH),
                TaskProgressColumn(),
                text,
                TimeRemainingColumn(),
                console=Console(file=self._stream),
                auto_refresh=False,
                speed_estimate_period=_SPEED_S,
            )
            self._tasks: dict[str, TaskID] = {}
            self._bars.start()

    @property
    def silent(self) -> bool:
        """True if nothing is shown."""
        return self._stream is None

    def line(self, text: str) -> None:
        """Print a line that stays, above the bars."""
        with self._unless_broken():
            if self.live:
                self._bars.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
            elif self._stream is not None:
                print(printable(text), file=self._stream, flush=True)

    def draw(self, rows: Sequence[Row]) -> None:
        """Show a bar for each row, which its title identifies, and no others, if bars are drawn at all."""
        if not self.live:
            return
        with self._unless_broken():
            for title in self._tasks.keys() - {row.title for row in rows}:
                self._bars.remove_task(self._tasks.pop(title))
            for title, fraction, text in rows:
                if title not in self._tasks:
                    self._tasks[title] = self._bars.add_task(printable(title), total=None, text="")
                total = None if fraction is None else 1.0
                self._bars.update(self._tasks[title], total=total, completed=fraction, text=printable(text))
            self._bars.refresh()

    def close(self) -> None:
        """Leave the terminal as it was; the bars stay."""
        if self.live:
            with self._unless_broken():
                self._bars.stop()

    @contextmanager
    def _unless_broken(self) -> Iterator[None]:
        """Show nothing more after the terminal has failed once."""
        try:
            yield
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._stream, self.live = None, False


@contextmanager
def unless_quick(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with how much more is done. Every five seconds stderr says how far it is, unless all is
    done by then."""
    shown, done, next_s = Display(enabled=False), 0, time.monotonic() + 5

    def advance(more: int = 1) -> None:
        nonlocal shown, done, next_s
        done += more
        if time.monotonic() < next_s or (done >= total and shown.silent):
            return
        next_s = time.monotonic() + 5
        shown = Display(stream=sys.stderr) if shown.silent else shown
        shown.draw([Row(title, done / total)])
        if not shown.live:
            shown.line(f"{title}: {done / total:.0%}")

    try:
        yield advance
    finally:
        shown.close()


def clock(seconds: float) -> str:
    """Format minutes and seconds, '3:07', or with hours, '1:02:03'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
