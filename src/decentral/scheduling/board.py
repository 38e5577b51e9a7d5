"""What the user sees of many jobs: a table on a terminal, one line per event anywhere else."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from decentral.scheduling.job import Job
from decentral.scheduling.pool import Ended, Seen
from decentral.store import Status
from decentral.store.failures import Failure, advice
from decentral.store.ownership import LOG
from decentral.terminal.display import Display, Row, clock, display


class Board:
    """Counts the jobs, and shows them. A context manager; silent without a display."""

    def __init__(self, title: str = "", shown: Display | None = None) -> None:
        self._title = title
        self._display = shown or Display()
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
        if self._display.live:
            self._display.draw([self._row(one) for one in seen], f"{self._title}: {self._headline()}")

    def waits(self, count: int) -> None:
        """Nothing is running here: another launcher is at all that is left."""
        if not self._waited:
            self._waited = True
            self.say(f"waiting   for {count} runs that another launcher is carrying out")

    def say(self, text: str) -> None:
        """A line that stays; without a table it says how many jobs have ended of those that are known."""
        ended = sum(self._counts.values())
        self._display.line(text if self._display.live else f"[{self._title}: {ended} of {self._total}] {text}")

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self._display.close(f"{self._title}: {self._headline()}")

    def _tell(self, text: str) -> None:
        """A line for those who have no table."""
        if not self._display.live:
            self.say(text)

    def _row(self, one: Seen) -> Row:
        percent = "" if one.fraction is None else f"{100 * one.fraction:3.0f} %  "
        return Row(one.job.title, one.place, one.fraction, percent + one.text, self._time_left(one))

    def _headline(self) -> str:
        """For example '12 done  1 failed  2 running  5 left   0:42 elapsed  about 0:20 to go'."""
        counts = [f"{count} {status.value}" for status, count in sorted(self._counts.items())]
        counts += [f"{len(self._seen)} running", f"{self._left} left"]
        elapsed = time.monotonic() - self._began
        worked = sum(self._counts.values()) + sum(one.fraction or 0.0 for one in self._seen)
        to_do = self._left + sum(1 - (one.fraction or 0.0) for one in self._seen)
        words = f"{'  '.join(counts)}   {clock(elapsed)} elapsed"
        return f"{words}  about {clock(elapsed * to_do / worked)} to go" if worked > 0 and to_do > 0 else words

    def _time_left(self, one: Seen) -> str:
        since, before = self._first.get(one.job.id, (0.0, 0.0))
        if one.fraction is None or one.fraction <= before:
            return ""
        return clock((time.monotonic() - since) * (1 - one.fraction) / (one.fraction - before))


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
    """A table on `stream` (stdout) if it is a terminal, a line per event elsewhere; silence unless `enabled`."""
    return Board(title, display(enabled, stream))
