"""The progress of a run: a bar on a terminal, lines elsewhere, or a file for the launcher of many runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from decentral.terminal.display import Display, Row, clock

ADDRESS = "DECENTRAL_PROGRESS"
"""Environment variable with the file in which a launcher wants to read the progress of its job."""

_LIVE_PERIOD_S = 0.2
_REPORT_PERIOD_S = 0.5
LINE_PERIOD_S = 5.0
"""Interval between progress lines without a terminal; evaluations print their own."""
_MILESTONES = 20  # evaluations that get a line of their own where there is no terminal


def tell(fraction: float, text: str) -> None:
    """Write the share of the job that is done, and a few words, for a launcher that wants to read it."""
    if file := os.environ.get(ADDRESS):
        with contextlib.suppress(OSError):  # the launcher is gone
            Path(file).write_text(f"{min(1.0, fraction):.6f} {text}", encoding="utf-8")


class Progress:
    """Shows a run: `update` at every step, `line` for what should stay, `milestone` at every evaluation.

    Failures of the terminal or the launcher do not stop the run.
    """

    def __init__(self, total_steps: int, title: str, shown: Display, tells: bool = False) -> None:
        self._total_steps = total_steps
        self._title = title
        self._display = shown
        self._tells = tells
        self._step, self._epoch, self._known = 0, 0.0, dict.fromkeys(("simulated", "loss", "worst", "averaged"), "")
        self._first: tuple[int, float] | None = None  # step and time of the first update, for the speed
        self._next_milestone = 0.0
        self._period_s = float("inf") if shown.silent else _LIVE_PERIOD_S if shown.live else LINE_PERIOD_S
        self._due = time.monotonic() + self._period_s
        if tells:
            self._period_s, self._due = _REPORT_PERIOD_S, 0.0
        if shown.live:
            shown.line(title)  # above the bar, for which there may be few columns

    def update(self, step: int, epoch: float | None = None, **known: str) -> None:
        """Take note that `step` steps are done. `known` has loss, worst, averaged and simulated time, formatted by the
        caller; empty ones keep their last text.

        Costs about a microsecond when nothing is due to be shown.
        """
        self._take(step, epoch, known)
        self.doing("")

    def doing(self, text: str) -> None:
        """Show the state, and what is going on besides steps, such as an evaluation, if that is due.

        Where there is no bar, and at the beginning of a run, it is due every five seconds.
        """
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._period_s
            self._show(text)

    def due(self) -> bool:
        """Return whether the next `update` will be shown: time to compute what costs something, such as the loss."""
        return time.monotonic() >= self._due

    def line(self, text: str) -> None:
        """Show a line of text now, and keep it."""
        self._display.line(text if self._display.live else f"[{self._title}] {text}")

    def milestone(self, text: str, step: int, epoch: float, **known: str) -> None:
        """Show an evaluation after `step` steps: an `update`, or where there is no bar a line, `text`, at most about 20
        times in a run. Never both: they say the same.

        The evaluation before the first step is shown by that line alone: beside later steps it would pass for theirs.
        """
        if step == 0:
            known |= {"worst": "", "averaged": ""}
        self._take(step, epoch, known)
        if self._tells:  # at the next chance
            self._due = min(self._due, time.monotonic() + _LIVE_PERIOD_S)
        elif not self._display.live and (step >= self._next_milestone or step >= self._total_steps):
            self._next_milestone = step + self._total_steps / _MILESTONES
            self._due = time.monotonic() + self._period_s
            self.line(text)
        self.doing("")

    def close(self) -> None:
        """Show the last state and leave the terminal as it was."""
        if self._tells or self._display.live:
            self._show()
        self._display.close()

    def _take(self, step: int, epoch: float | None, known: dict[str, str]) -> None:
        self._step = step
        if epoch is not None:
            self._epoch = epoch
        self._known |= {name: text for name, text in known.items() if text}
        if self._first is None:
            self._first = (step, time.monotonic())

    def _show(self, doing: str = "") -> None:
        fraction, count = min(1.0, self._step / max(1, self._total_steps)), f"{self._step}/{self._total_steps}"
        known = [f"{name} {text}" for name, text in self._known.items() if text]
        words = "  ".join([f"epoch {self._epoch:.1f}", *known, doing]).rstrip()
        if self._tells:
            tell(fraction, words)
        elif self._display.live:
            self._display.draw([Row("", fraction, f"{count}  {words}")])
        else:
            left = "" if doing else self._time_left()  # the time of an evaluation does not follow from the steps
            self.line(f"step {count}  {words}  {left}".rstrip())

    def _time_left(self) -> str:
        """Return for example '1:02:03 left', from the steps of this process alone; '' before there is a speed."""
        if self._first is None or self._step <= self._first[0]:
            return ""
        per_step_s = (time.monotonic() - self._first[1]) / (self._step - self._first[0])
        return f"{clock(per_step_s * max(0, self._total_steps - self._step))} left"


@contextmanager
def progress(
    total_steps: int, title: str, enabled: bool = True, stream: TextIO | None = None, leader: bool = True
) -> Iterator[Progress]:
    """Show the progress of a run on `stream` (stdout): a bar on a terminal, lines elsewhere.

    `enabled=False` shows nothing. A launcher named by `ADDRESS` is told in any case, and then nothing is shown. Of the
    processes of a run, only the leader shows or tells anything.
    """
    tells = leader and ADDRESS in os.environ
    shown = Progress(total_steps, title, Display(leader and enabled and not tells, stream), tells)
    try:
        yield shown
    finally:
        shown.close()
