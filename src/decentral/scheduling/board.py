"""Progress display of many jobs: a table on a terminal, otherwise one line per event."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TextIO

from decentral.scheduling.job import Ended, Job, Seen
from decentral.store import Status
from decentral.store.failures import ADVICE, Failure
from decentral.store.run_store import LOG
from decentral.terminal.display import Display, Row, clock, display

LINE_PERIOD_S = 30.0
"""Interval of status lines while jobs run, without a table."""
_NAMED = 4  # running jobs named in such a line; others are counted
_LEAST_SHARE, _LEAST_S = 0.02, 5.0  # of a job, by which the time to go is judged


class Board:
    """Counts the jobs, and shows them. A context manager; silent without a display.

    The time to go follows from what has been done since this start, whatever earlier attempts had left: the jobs that
    are left take as long as those so far, as many side by side as now.
    """

    def __init__(
        self, title: str = "", shown: Display | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._display = shown or Display()
        self._now = now
        self._began = self._said = now()
        self._counts: Counter[Status] = Counter()
        self._started: dict[str, tuple[float, float]] = {}  # when a running job began, and what was stored of it
        self._spent_s = self._work = 0.0  # of jobs that are done
        self._seen: list[Seen] = []
        self._waiting: Sequence[Job] = []
        self._total = 0
        self._waited = self._stopping = False

    def expect(self, jobs: int) -> None:
        """Set the known number of jobs: finished, running and remaining. It may grow during a search."""
        self._total = jobs

    def started(self, job: Job) -> None:
        """A job has been started."""
        self._started[job.id] = self._now(), job.held()
        self._waited = False
        self._tell(f"started   {job.title}")

    def ended(self, ended: Ended, again: bool) -> None:
        """A job has ended; `again` if it will be started again."""
        began, held = self._started.pop(ended.job.id, (self._now(), 0.0))
        took = self._now() - began
        if ended.status is Status.done:
            self._spent_s, self._work = self._spent_s + took, self._work + 1 - held
        if not again:
            self._counts[ended.status] += 1
        if ended.status is not Status.failed:
            self._tell(f"{ended.status.value:<9} {ended.job.title}  ({took:.1f} s)")
        elif again:
            self.say(f"retrying  {ended.job.title}: {ended.failure}: {ended.reason}")
        else:
            self.say(failure_line(ended))

    def show(self, seen: Sequence[Seen], waiting: Sequence[Job]) -> None:
        """How far the running jobs are, and which ones wait. Without a table that is a line, if nothing else was said
        for half a minute."""
        self._seen, self._waiting = list(seen), waiting
        for one in seen:
            if one.waits and one.job.id in self._started:
                self._started[one.job.id] = self._now(), self._started[one.job.id][1]
        if self._display.live:
            rows = [Row(one.job.title, one.place, one.fraction, _how_far(one)) for one in seen]
            self._display.draw(rows, f"{self._title}: {self._headline()}")
        elif seen and not self._display.silent and self._now() - self._said >= LINE_PERIOD_S:
            self.say(f"running   {self._progress_line()}")

    def stops(self, why: str) -> None:
        """Report that no more jobs start and running ones are stopped; the remaining time is no longer shown."""
        self._stopping = True
        self.say(why)

    def waits(self, count: int) -> None:
        """Report that nothing runs here: another launcher has all remaining jobs."""
        if not self._waited:
            self._waited = True
            self.say(f"waiting   for {count} runs of another launcher")

    def say(self, text: str) -> None:
        """Print a permanent line; without a table it includes the numbers of finished, done or diverged, and known
        jobs."""
        self._said = self._now()
        finished = self._counts[Status.done] + self._counts[Status.diverged]
        self._display.line(text if self._display.live else f"[{self._title}: {finished} of {self._total}] {text}")

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self._display.close(f"{self._title}: {self._headline()}")

    def _tell(self, text: str) -> None:
        """Print a line, only without a table."""
        if not self._display.live:
            self.say(text)

    def _headline(self) -> str:
        """For example '12 done  1 failed  2 running  5 not started   0:42 elapsed  about 0:20 to go'."""
        counts = [f"{count} {status.value}" for status, count in sorted(self._counts.items())]
        counts += [f"{len(self._seen)} running", *self._not_started()]
        return f"{'  '.join(counts)}   {clock(self._now() - self._began)} elapsed  {self._to_go()}".rstrip()

    def _progress_line(self) -> str:
        """For example 'RelaySGD, lr 0.1 (34 %  epoch 3.4), D-PSGD, lr 0.1 (12 %  epoch 1.2); 5 not started, about
        0:20 to go'."""
        named = [f"{one.job.title} ({_how_far(one).strip() or one.place})" for one in self._seen[:_NAMED]]
        if len(self._seen) > _NAMED:
            named.append(f"and {len(self._seen) - _NAMED} more")
        rest = ", ".join(filter(None, [*self._not_started(), self._to_go()]))
        return f"{', '.join(named)}{rest and f'; {rest}'}"

    def _not_started(self) -> list[str]:
        """Return the number of jobs waiting for resources, if any; running ones are counted separately."""
        return [f"{len(self._waiting)} not started"] if self._waiting else []

    def _to_go(self) -> str:
        """Return 'about 0:20 to go'; '' if unknown or if jobs are being stopped."""
        running = [one for one in self._seen if not one.waits]
        spent_s, work, left = self._spent_s, self._work, float(len(self._waiting) + len(self._seen) - len(running))
        for one in running:
            began, held = self._started.get(one.job.id, (self._now(), 0.0))
            share = max(one.fraction or 0.0, held)
            left += 1 - share
            if share > held:  # else it has not reported anything yet
                spent_s += self._now() - began
                work += share - held
        if self._stopping or not running or work < _LEAST_SHARE or spent_s < _LEAST_S:
            return ""
        return f"about {clock(spent_s / work * left / len(running))} to go"


def _how_far(one: Seen) -> str:
    """For example ' 34 %  epoch 3.4  loss 0.41'."""
    return one.text if one.fraction is None else f"{100 * one.fraction:3.0f} %  {one.text}"


def failure_line(ended: Ended) -> str:
    """Which job failed, of what kind the failure was, what happened, where its log is, and what the user can do."""
    job = ended.job
    kind = Failure(ended.failure or Failure.error)
    log = job.directory / LOG
    words = [f"failed    {job.title} (run {job.id}): {kind}: {ended.reason.rstrip('.')}. {ADVICE[kind]}."]
    words += [f"Log: {log}"] if log.exists() else []
    words += [f"Retry: {job.command}"] if job.command else []
    return "  ".join(words)


def board(title: str, enabled: bool = True, stream: TextIO | None = None) -> Board:
    """A table on `stream` (stdout) if it is a terminal, a line per event elsewhere; silence unless `enabled`."""
    return Board(title, display(enabled, stream))
