"""How far a study is."""

from __future__ import annotations

from collections.abc import Sequence

from decentral.launch.devices import num_cores
from decentral.launch.job import Job
from decentral.store import RunStore
from decentral.study.study import Cell

_LISTED = 60  # more cells than that are only counted


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


def plan_table(name: str, scale: str, cells: Sequence[Cell]) -> str:
    """How many cells and jobs there are, how many are done, and how long the rest may take."""
    from decentral.report.summary import duration

    source = Unfinished(cells)
    left = source.pending()
    done = [source.jobs[id] for id in source.finished]
    lines = [] if len(cells) > _LISTED else [_cell_table(cells), ""]
    lines.append(
        f"{name} at scale={scale}: {len(cells)} cells, {len(source.jobs)} jobs known today ({len(done)} done, "
        f"{len(left)} to do). A search for a learning rate may ask for more as it goes."
    )
    seconds = [float((RunStore.peek(job.directory) or {}).get("wall_s", 0.0)) for job in done]
    if left and any(seconds):
        estimate = len(left) * sum(seconds) / len(seconds)
        here = duration(estimate / num_cores())
        lines.append(
            f"Time: about {duration(estimate)} of one core for those, by the mean of the jobs that are done; {here} on "
            f"the {num_cores()} cores here."
        )
    elif left:
        lines.append("Time: not known before the first job is done.")
    return "\n".join(lines)


def _cell_table(cells: Sequence[Cell]) -> str:
    """A line for each cell; jobs that several cells share are counted in each."""
    from decentral.report.summary import aligned

    labels = list(dict.fromkeys(label for cell in cells for label in cell.labels))
    rows = [[*labels, "jobs known", "done"]]
    for cell in cells:
        jobs = {job.id: job for job in cell.jobs()}
        finished = sum(job.finished() is not None for job in jobs.values())
        rows.append([*(str(cell.labels.get(label, "")) for label in labels), str(len(jobs)), str(finished)])
    return aligned(rows, left=len(labels))
