"""How far a run is: a live bar on a terminal, plain lines anywhere else, or a word to the launcher of many runs."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

ADDRESS = "DECENTRAL_PROGRESS"
"""Environment variable with 'socket:number': where a launcher wants to hear how far its job of that number is."""

_LIVE_PERIOD_S = 0.2
_REPORT_PERIOD_S = 0.5
_PLAIN_PERIOD_S = 5.0
_BAR_WIDTH = 100  # columns that the live bar and its numbers take beside the title


@dataclass
class _Shown:
    """What is known of the run, as it is shown."""

    step: int = 0
    epoch: float = 0.0
    loss: str = ""
    worst: str = ""
    averaged: str = ""

    def words(self, brief: bool = False) -> str:
        """For example 'epoch 3.0  loss 0.41  worst 81.2 %  averaged 83.0 %'; what is not known yet is left out."""
        pairs = (("loss", self.loss), ("worst", self.worst), ("avg" if brief else "averaged", self.averaged))
        return "  ".join(
            [f"{'ep' if brief else 'epoch'} {self.epoch:.1f}", *(f"{name} {text}" for name, text in pairs if text)]
        )


class Progress:
    """Silent progress, and the common part of the others: `update` at every step, `line` at every evaluation.

    Nothing that goes wrong with the terminal (a closed pipe, a full disk under a log) stops the run.
    """

    _period_s = float("inf")

    def __init__(self, total_steps: int, title: str) -> None:
        self._total_steps = total_steps
        self._title = title
        self._shown = _Shown()
        self._first: tuple[int, float] | None = None  # step and time of the first update, for the speed
        self._due = time.monotonic() + self._period_s

    def update(
        self, step: int, epoch: float | None = None, loss: str = "", worst: str = "", averaged: str = ""
    ) -> None:
        """`step` steps are done. The rest, formatted by the caller, stays as it was where it is not given.

        Costs well under a microsecond when nothing is due to be shown.
        """
        shown = self._shown
        shown.step = step
        if epoch is not None:
            shown.epoch = epoch
        if loss:
            shown.loss = loss
        if worst:
            shown.worst = worst
        if averaged:
            shown.averaged = averaged
        now = time.monotonic()
        if self._first is None:
            self._first = (step, now)
        if now >= self._due:
            self._due = now + self._period_s
            self._attempt(self._show)

    def due(self) -> bool:
        """Whether the next `update` will be shown: time to find out what costs something to know, such as the loss."""
        return time.monotonic() >= self._due

    def line(self, text: str) -> None:
        """Show a line of text now, and keep it."""
        self._attempt(self._print, text)

    def milestone(self, text: str) -> None:
        """Show what an evaluation found at the current step, where there is no live bar: at most about 20 of them."""

    def close(self) -> None:
        """Show the last state and leave the terminal as it was."""
        self._attempt(self._finish)

    def _attempt(self, show, *arguments: str) -> None:
        try:
            show(*arguments)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._attempt = lambda *_: None  # type: ignore[method-assign]

    def _show(self) -> None:
        pass

    def _print(self, text: str) -> None:
        pass

    def _finish(self) -> None:
        pass

    def _time_left(self) -> str:
        """For example '1:02:03 left', from the steps of this process alone; '' before there is a speed."""
        if self._first is None or self._shown.step <= self._first[0]:
            return ""
        per_step_s = (time.monotonic() - self._first[1]) / (self._shown.step - self._first[0])
        minutes, seconds = divmod(round(per_step_s * max(0, self._total_steps - self._shown.step)), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"


class _Plain(Progress):
    """A line every few seconds."""

    _period_s = _PLAIN_PERIOD_S

    def __init__(self, total_steps: int, title: str, stream: TextIO) -> None:
        super().__init__(total_steps, title)
        self._stream = stream
        self._next_milestone = 0.0

    def milestone(self, text: str) -> None:
        """Print it if enough steps have gone by, or if it is the last."""
        step = self._shown.step
        if step >= self._next_milestone or step >= self._total_steps:
            self._next_milestone = step + self._total_steps / 20
            self._due = time.monotonic() + self._period_s
            self.line(text)

    def _show(self) -> None:
        left = self._time_left()
        words = f"step {self._shown.step}/{self._total_steps}  {self._shown.words()}"
        self._print(f"{words}  {left}" if left else words)

    def _print(self, text: str) -> None:
        print(f"[{self._title}] {text}", file=self._stream, flush=True)


class _Live(Progress):
    """A bar, redrawn by the run itself a few times per second: no thread competes with it."""

    _period_s = _LIVE_PERIOD_S

    def __init__(self, total_steps: int, title: str, stream: TextIO) -> None:
        super().__init__(total_steps, title)
        self._bar, self._task = self._start(stream)

    def _start(self, stream: TextIO) -> tuple[Bar, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        console = Console(file=stream)
        columns = [BarColumn(12), MofNCompleteColumn(), TextColumn("{task.fields[words]}", markup=False)]
        if console.width >= len(self._title) + _BAR_WIDTH:
            columns.insert(0, TextColumn("{task.description}", markup=False))
        else:
            console.print(self._title, markup=False, highlight=False)
        bar = Bar(*columns, console=console, auto_refresh=False)
        bar.start()
        return bar, bar.add_task(self._title, total=self._total_steps, words="")

    def _show(self) -> None:
        words = f"{self._shown.words(brief=True)}  {self._time_left()}"
        self._bar.update(self._task, completed=self._shown.step, words=words, refresh=True)

    def _print(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def _finish(self) -> None:
        self._show()
        self._bar.stop()


class Messenger:
    """Tells the launcher that asked for it, by `ADDRESS`, how far its job is, in datagrams 'number fraction words'.

    Where nobody has asked, nothing is told.
    """

    def __init__(self) -> None:
        self._address, _, self._number = os.environ.get(ADDRESS, "").rpartition(":")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self._address else None

    def tell(self, fraction: float, text: str) -> None:
        """The share of the job that is done, and a few words. Raises OSError if the launcher is gone."""
        if self._socket is None:
            return
        message = f"{self._number} {min(1.0, fraction):.6f} {text}".encode()
        with contextlib.suppress(BlockingIOError):  # the launcher is busy: it hears the next one
            self._socket.sendto(message, socket.MSG_DONTWAIT, self._address)

    def close(self) -> None:
        """Nothing more is told."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Reported(Progress):
    """Messages to the launcher; nothing on the terminal."""

    _period_s = _REPORT_PERIOD_S

    def __init__(self, total_steps: int, title: str) -> None:
        super().__init__(total_steps, title)
        self._messenger = Messenger()
        self._due = 0.0

    def milestone(self, text: str) -> None:
        """Say what was found, at the next chance."""
        self._due = min(self._due, time.monotonic() + _LIVE_PERIOD_S)

    def _show(self) -> None:
        self._messenger.tell(self._shown.step / max(1, self._total_steps), self._shown.words())

    def _finish(self) -> None:
        self._show()
        self._messenger.close()


@contextmanager
def progress(total_steps: int, title: str, enabled: bool = True, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show the progress of a run on `stream` (stdout): live on a terminal, as plain lines elsewhere.

    `enabled=False` shows nothing at all. A launcher that asked for it, by `ADDRESS`, is told in any case.
    """
    stream = stream or sys.stdout
    shown: Progress
    if os.environ.get(ADDRESS):
        shown = _Reported(total_steps, title)
    elif not enabled or stream is None:
        shown = Progress(total_steps, title)
    elif stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        shown = _Live(total_steps, title, stream)
    else:
        shown = _Plain(total_steps, title, stream)
    try:
        yield shown
    finally:
        shown.close()
