"""What a study needs: how many jobs, and how much time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from decentral.host import devices
from decentral.scheduling.job import Job
from decentral.scheduling.launchers.launcher import Launcher
from decentral.store import RunStore
from decentral.store.files import read_json
from decentral.study.progress import Unfinished
from decentral.study.study import Cell
from decentral.terminal.text import aligned, duration

_LISTED = 60  # more cells than that are only counted


class _Entry(NamedTuple):
    """What a cell adds to the study: jobs that no cell above it has."""

    cell: Cell
    known: list[Job]
    done: int
    to_come: list[Job]
    shared: int

    def left(self) -> list[Job]:
        return [*(job for job in self.known if job.finished() is None), *self.to_come]


def plan(name: str, scale: str, cells: Sequence[Cell], launcher: Launcher) -> str:
    """A line for each cell and sentences on the whole; rows add up to the total, for a job of several cells is counted
    in the first of them."""
    source = Unfinished(cells)
    pending = source.pending()
    entries = _entries(cells)
    left = [job for entry in entries for job in entry.left()]
    begun = sum(job.held() > 0 for job in pending)
    lines = [] if len(cells) > _LISTED else [_table(entries), ""]
    to_come = sum(len(entry.to_come) for entry in entries)
    more = f", and {to_come} to come when searches for learning rates are over; these may ask for more as they go"
    lines.append(
        f"{name} at scale={scale}: {len(cells)} cells, {len(source.jobs)} jobs known today ({len(source.finished)} "
        f"done, {len(pending)} to do{f', {begun} of them begun' if begun else ''}){more if to_come else ''}."
    )
    if left:
        lines.append(_time(left, [source.jobs[id] for id in source.finished], launcher))
    return "\n".join(lines)


def _entries(cells: Sequence[Cell]) -> list[_Entry]:
    """What is known today is counted before what is to come, which may be among it."""
    seen: set[str] = set()
    entries = []
    for cell in cells:
        jobs = {job.id: job for job in cell.jobs()}
        own = [job for id, job in jobs.items() if id not in seen]
        entries.append(_Entry(cell, own, sum(job.finished() is not None for job in own), [], len(jobs) - len(own)))
        seen |= jobs.keys()
    for place, entry in enumerate(entries):
        later = {job.id: job for job in entry.cell.to_come() if job.id not in seen}
        entries[place] = entry._replace(to_come=list(later.values()))
        seen |= later.keys()
    return entries


def _table(entries: Sequence[_Entry]) -> str:
    """A line for each cell, and one for all."""
    labels = list(dict.fromkeys(label for entry in entries for label in entry.cell.labels))
    rows = [[*labels, "jobs known", "of rows above", "done", "to come"]]
    for entry in entries:
        counts = (len(entry.known), entry.shared, entry.done, len(entry.to_come))
        rows.append([*(str(entry.cell.labels.get(label, "")) for label in labels), *map(str, counts)])
    totals = [sum(int(row[column]) for row in rows[1:]) for column in range(len(labels), len(rows[0]))]
    rows.append(["total", *[""] * (len(labels) - 1), str(totals[0]), "", str(totals[2]), str(totals[3])])
    return aligned(rows, left=len(labels))


# -- time --------------------------------------------------------------------------------------------------------------


def _time(left: Sequence[Job], done: Iterable[Job], launcher: Launcher) -> str:
    """How long the jobs take that are left, by those of this study that are done: of one kind first (the same method,
    network, data and length), then of any."""
    by_kind: dict[str, list[float]] = {}
    for job in done:
        if (seconds := _core_seconds(job)) is not None:
            by_kind.setdefault(job.kind, []).append(seconds)
    words, at_once = _places(launcher, left)
    of_all = [seconds for found in by_kind.values() for seconds in found]
    total, unknown = 0.0, 0
    for job in left:
        known = by_kind.get(job.kind, of_all)
        if known:
            total += fmean(known) * (1 - job.held())
        unknown += not known
    if unknown == len(left):
        return f"Time:     not known before a job is done; {words}."
    beside = f" (and what {unknown} jobs take of whose kind none is done)" if unknown else ""
    return f"Time:     about {duration(total / at_once)} with {words}, {duration(total)} of one core{beside}."


def _core_seconds(job: Job) -> float | None:
    """That a finished job took of a core, or of a GPU; None if it is not known."""
    facts = RunStore.peek(job.directory) or {}
    origin = read_json(job.directory / "provenance.json") or {}
    processes = max(1, int(origin.get("processes") or 1))
    cores = min(processes, int(origin.get("cores") or processes))
    return cores * float(facts["wall_s"]) if facts.get("wall_s") else None


def _places(launcher: Launcher, left: Sequence[Job]) -> tuple[str, int]:
    """Where the jobs run, in words, and how many cores (or GPUs, or jobs of a cluster) work at the same time."""
    most = getattr(launcher, "max_jobs", None)
    if most is not None:
        at_once = min(len(left), most)
        return f"{at_once} jobs at once by launcher={getattr(launcher, 'name', '')}", at_once
    gpus = devices.num_gpus()
    if gpus and all(job.demand.device != "cpu" for job in left):
        return f"{gpus} GPUs", gpus
    given = str(getattr(launcher, "slots", "auto"))
    slots = devices.num_cores() if given == "auto" else int(given)
    return f"{slots} cores" if slots > 1 else "1 core", slots
