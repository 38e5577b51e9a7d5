"""What the user sees of many jobs: a live table on a terminal, one line per event anywhere else."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from decentral.launch.failures import Failure, advice
from decentral.launch.job import Job
from decentral.launch.pool import Ended, Seen
from decentral.store import Status
from decentral.store.ownership import LOG

if TYPE_CHECKING:
    from rich.table import Table

_ROWS_BESIDE = 6  # lines of a terminal that are no runs
_BAR_WIDTH = 12


class Board:
    """A silent board, which counts, and the common part of the others. A context manager."""

    def __init__(self, title: str = "") -> None:
        self._title = title
        self._began = time.monotonic()
        self._counts: Counter[Status] = Counter()
        self._started: dict[str, float] = {}
        self._first: dict[str, tuple[float, float]] = {}  # time and fraction when a job was first seen to move
        self._seen: list[Seen] = []
        self._left = self._total = 0
        self._waited = False

    def expect(self, jobs: int) -> None:
        """So many jobs are known of: those that are over, running and left. It may grow as a search goes on."""
        self._total = jobs

    def started(self, job: Job) -> None:
        """A job has been started."""
        self._started[job.id] = time.monotonic()
        self._waited = False
        self._tell(f"started   {job.title}")

    def ended(self, ended: Ended, again: bool) -> None:
        """A job has ended; `again` if it will be started again."""
        took = time.monotonic() - self._started.pop(ended.job.id, time.monotonic())
        self._first.pop(ended.job.id, None)
        if not again:
            self._counts[ended.status] += 1
        if ended.status is not Status.failed:
            self._tell(f"{ended.status.value:<9} {ended.job.title}  ({took:.1f} s)")
        elif again:
            self.say(f"retrying  {ended.job.title}: {ended.failure}: {ended.reason}")
        else:
            self.say(failure_line(ended))

    def show(self, seen: Sequence[Seen], left: int) -> None:
        """How far the running jobs are, and how many wait."""
        self._seen, self._left = list(seen), left
        now = time.monotonic()
        for one in seen:
            if one.fraction:
                self._first.setdefault(one.job.id, (now, one.fraction))
        self._guarded(self._draw)

    def waits(self, count: int) -> None:
        """Nothing is running here: another launcher is at all that is left."""
        if not self._waited:
            self._waited = True
            self.say(f"waiting   for {count} runs that another launcher is carrying out")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._guarded(self._print, text)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self._guarded(self._close)

    def _guarded(self, show, *arguments: str) -> None:
        """Nothing that goes wrong with the terminal stops the runs."""
        with suppress(OSError, ValueError):
            show(*arguments)

    def _tell(self, text: str) -> None:
        """A line for those who have no live table."""

    def _print(self, text: str) -> None:
        pass

    def _draw(self) -> None:
        pass

    def _close(self) -> None:
        pass

    def _headline(self) -> str:
        """For example '12 done  1 failed  2 running  5 left   0:42 elapsed  about 0:20 to go'."""
        counts = [f"{count} {status.value}" for status, count in sorted(self._counts.items())]
        counts += [f"{len(self._seen)} running", f"{self._left} left"]
        elapsed = time.monotonic() - self._began
        worked = sum(self._counts.values()) + sum(one.fraction or 0.0 for one in self._seen)
        to_do = self._left + sum(1 - (one.fraction or 0.0) for one in self._seen)
        words = f"{'  '.join(counts)}   {_clock(elapsed)} elapsed"
        return f"{words}  about {_clock(elapsed * to_do / worked)} to go" if worked > 0 and to_do > 0 else words

    def _time_left(self, one: Seen) -> str:
        since, before = self._first.get(one.job.id, (0.0, 0.0))
        if one.fraction is None or one.fraction <= before:
            return ""
        return _clock((time.monotonic() - since) * (1 - one.fraction) / (one.fraction - before))


class _Plain(Board):
    """A line for each event, with how many jobs have ended of those that are known."""

    def __init__(self, title: str, stream: TextIO) -> None:
        super().__init__(title)
        self._stream = stream

    def _tell(self, text: str) -> None:
        self.say(text)

    def _print(self, text: str) -> None:
        ended = sum(self._counts.values())
        print(f"[{self._title}: {ended} of {self._total}] {text}", file=self._stream, flush=True)


class _Live(Board):
    """A table, redrawn by the scheduler as it goes round: no thread competes with the runs."""

    def __init__(self, title: str, stream: TextIO) -> None:
        super().__init__(title)
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=stream), auto_refresh=False, transient=True)

    def __enter__(self) -> Board:
        self._live.start()
        return self

    def _print(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        headline = Text(f"{self._title}: {self._headline()}", style="bold", no_wrap=True, overflow="ellipsis")
        self._live.update(Group(headline, self._table()), refresh=True)

    def _close(self) -> None:
        self._live.stop()
        self._live.console.print(f"{self._title}: {self._headline()}", markup=False, highlight=False)

    def _table(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for column in range(5):
            table.add_column(no_wrap=True, overflow="ellipsis", justify="right" if column == 4 else "left")
        shown = self._seen[: max(1, self._live.console.height - _ROWS_BESIDE)]
        for one in shown:
            bar = ProgressBar(total=1.0, completed=one.fraction or 0.0, width=_BAR_WIDTH)
            percent = "" if one.fraction is None else f"{100 * one.fraction:3.0f} %  "
            table.add_row(
                Text(one.job.title), Text(one.place), bar, Text(percent + one.text), Text(self._time_left(one))
            )
        if len(shown) < len(self._seen):
            table.add_row(Text(f"and {len(self._seen) - len(shown)} more"))
        return table


def failure_line(ended: Ended) -> str:
    """Which job failed, of what kind the failure was, what happened, where its log is, and what the user can do."""
    job = ended.job
    kind = Failure(ended.failure or Failure.error)
    log = job.directory / LOG
    words = [f"failed    {job.title} (run {job.id}): {kind}: {ended.reason.rstrip('.')}. {advice(kind)}."]
    words += [f"Log: {log}"] if log.exists() else []
    words += [f"Again: {job.command}"] if job.command else []
    return "  ".join(words)


def board(title: str, enabled: bool = True, stream: TextIO | None = None) -> Board:
    """A live table on `stream` (stdout) if it is a terminal, plain lines elsewhere; silence unless `enabled`."""
    stream = stream or sys.stdout
    if not enabled or stream is None:
        return Board(title)
    if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return _Live(title, stream)
    return _Plain(title, stream)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
