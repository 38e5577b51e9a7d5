"""How far a study is."""

from __future__ import annotations

from collections.abc import Sequence

from decentral.scheduling.job import Job
from decentral.study.study import Cell


class Unfinished:
    """What a scheduler asks: the jobs that are needed now and are not finished.

    Cells take turns, so that every search has a job running before one of them gets its second.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.jobs: dict[str, Job] = {}
        """All jobs known so far, by id: cells may share some."""
        self.finished: set[str] = set()
        """The ids of those that are finished, as of the last `pending`."""

    def pending(self) -> list[Job]:
        """The jobs to start, in turns through the cells."""
        waiting = [[job for job in cell.jobs() if not self._is_finished(job)] for cell in self.cells]
        turns = max((len(jobs) for jobs in waiting), default=0)
        ordered = [jobs[turn] for turn in range(turns) for jobs in waiting if turn < len(jobs)]
        unique: dict[str, Job] = {}
        for job in ordered:
            unique.setdefault(job.id, job)
        return list(unique.values())

    def _is_finished(self, job: Job) -> bool:
        self.jobs.setdefault(job.id, job)
        if job.id not in self.finished and job.finished() is not None:
            self.finished.add(job.id)
        return job.id in self.finished
