"""Progress display of many jobs: bars on a terminal, otherwise one line per event."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from decentral.scheduling.job import Ended, Job, Seen
from decentral.store import Status
from decentral.store.failures import ADVICE, Failure
from decentral.store.run_store import LOG
from decentral.terminal.console import warn
from decentral.terminal.display import Display, Row, clock

LINE_PERIOD_S = 30.0
"""Interval of status lines while jobs run, without bars."""
_NAMED = 4  # running jobs named in such a line; others are counted


class Board:
    """Counts the jobs, and shows them. A context manager."""

    def __init__(self, title: str, display: Display) -> None:
        self._title = title
        self._display = display
        self._began = self._said = time.monotonic()
        self._counts: Counter[Status] = Counter()
        self._started: dict[str, float] = {}
        self._total = 0
        self._waited = False

    def expect(self, jobs: int) -> None:
        """Set the known number of jobs: finished, running and remaining. It may grow during a search."""
        self._total = jobs

    def started(self, job: Job) -> None:
        """Report that a job has been started."""
        self._started[job.id] = time.monotonic()
        self._waited = False
        self._tell(f"started   {job.title}")

    def ended(self, ended: Ended, again: bool) -> None:
        """Report that a job has ended; `again` if it will be started again."""
        took = time.monotonic() - self._started.pop(ended.job.id, time.monotonic())
        if not again:
            self._counts[ended.status] += 1
        if ended.status is not Status.failed:
            self._tell(f"{ended.status.value:<9} {ended.job.title}  ({took:.1f} s)")
        elif again:
            self.say(f"retrying  {ended.job.title}: {ended.failure}: {ended.reason}")
        else:
            self.say(failure_line(ended))
            if self._display.silent:
                warn(failure_line(ended))

    def show(self, seen: Sequence[Seen], waiting: Sequence[Job]) -> None:
        """Show how far the running jobs are, and how many wait. Without bars, print a line if nothing else was said for
        half a minute."""
        not_started = [f"{len(waiting)} not started"] if waiting else []
        if self._display.live:
            counts = [f"{count} {status.value}" for status, count in sorted(self._counts.items())]
            counts += [f"{len(seen)} running", *not_started, f"{clock(time.monotonic() - self._began)} elapsed"]
            done = self._counts.total() + sum(one.fraction or 0.0 for one in seen)
            whole = Row(self._title, done / max(1, self._total), "  ".join(counts))
            self._display.draw([whole, *(Row(one.job.title, one.fraction, f"{one.place}  {one.text}") for one in seen)])
        elif seen and time.monotonic() - self._said >= LINE_PERIOD_S:
            named = [f"{one.job.title} ({_how_far(one)})" for one in seen[:_NAMED]]
            named += [f"and {len(seen) - _NAMED} more"] * (len(seen) > _NAMED)
            self.say(f"running   {'; '.join([', '.join(named), *not_started])}")

    def waits(self, count: int) -> None:
        """Report that nothing runs here: another launcher has all remaining jobs."""
        if not self._waited:
            self._waited = True
            self.say(f"waiting   for {count} run{'s' * (count > 1)} of another launcher")

    def say(self, text: str) -> None:
        """Print a permanent line; without bars it includes the numbers of finished, done or diverged, and known
        jobs."""
        self._said = time.monotonic()
        finished = self._counts[Status.done] + self._counts[Status.diverged]
        self._display.line(text if self._display.live else f"[{self._title}: {finished} of {self._total}] {text}")

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self.show([], [])
        self._display.close()

    def _tell(self, text: str) -> None:
        """Print a line, only without bars."""
        if not self._display.live:
            self.say(text)


def _how_far(one: Seen) -> str:
    """Return for example '34 %  epoch 3.4  loss 0.41'; the place of a job that has not reported anything."""
    return (one.text if one.fraction is None else f"{100 * one.fraction:.0f} %  {one.text}").strip() or one.place


def failure_line(ended: Ended) -> str:
    """Return which job failed, the kind of failure, what happened, where the log is, and what the user can do."""
    job = ended.job
    kind = Failure(ended.failure or Failure.error)
    log = job.directory / LOG
    words = [f"failed    {job.title} (run {job.id}): {kind}: {ended.reason.rstrip('.')}. {ADVICE[kind]}."]
    words += [f"Log: {log}"] if log.exists() else []
    words += [f"Retry: {job.command}"] if job.command else []
    return "  ".join(words)


def board(title: str, enabled: bool = True, stream: TextIO | None = None) -> Board:
    """Return bars on `stream` (stdout) if it is a terminal, a line per event elsewhere.

    Unless `enabled`, only failures are reported, on stderr.
    """
    return Board(title, Display(enabled, stream))
