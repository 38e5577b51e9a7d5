"""What a study needs: how many jobs, and how much time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from decentral.host import machine
from decentral.scheduling.job import Job
from decentral.scheduling.launchers.launcher import Launcher
from decentral.store import RunStore
from decentral.store.files import read_json
from decentral.study.study import Cell, Unfinished
from decentral.terminal.console import aligned, duration

_LISTED = 60  # more cells than that are only counted


def plan(name: str, scale: str, cells: Sequence[Cell], launcher: Launcher) -> str:
    """A line for each cell and sentences on the whole; a job of several cells is counted in the first of them."""
    source = Unfinished(cells)
    pending = source.pending()
    seen: set[str] = set()
    known = [_not_seen(cell.jobs(), seen) for cell in cells]
    later = [_not_seen(cell.to_come(), seen) for cell in cells]
    labels = list(dict.fromkeys(label for cell in cells for label in cell.labels))
    rows = [[*labels, "jobs known", "done", "to come"]]
    totals = [0, 0, 0]
    for cell, own, to_come in zip(cells, known, later, strict=True):
        counts = (len(own), sum(job.id in source.finished for job in own), len(to_come))
        rows.append([*(str(cell.labels.get(label, "")) for label in labels), *map(str, counts)])
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
    rows.append(["total", *[""] * (len(labels) - 1), *map(str, totals)])
    lines = [] if len(cells) > _LISTED else [aligned(rows, left=len(labels)), ""]
    more = f", and {totals[2]} to come when searches for learning rates are over; these may ask for more as they go"
    lines.append(
        f"{name} at scale={scale}: {len(cells)} cells, {totals[0]} jobs known today ({totals[1]} done, {len(pending)} "
        f"to do){more if totals[2] else ''}."
    )
    left = [*pending, *(job for jobs in later for job in jobs)]
    if left:
        lines.append(_time(left, [source.jobs[id] for id in source.finished], launcher))
    return "\n".join(lines)


def _not_seen(jobs: Iterable[Job], seen: set[str]) -> list[Job]:
    """Those that are new, which are seen from now on."""
    new = {job.id: job for job in jobs if job.id not in seen}
    seen.update(new)
    return list(new.values())


def _time(left: Sequence[Job], done: Iterable[Job], launcher: Launcher) -> str:
    """How long the jobs take that are left, by those of this study that are done: of one kind first (the same method,
    network, data and length), then of any."""
    by_kind: dict[str, list[float]] = {}
    for job in done:
        if (seconds := _core_seconds(job)) is not None:
            by_kind.setdefault(job.kind, []).append(seconds)
    words, at_once = _places(launcher, left)
    of_all = [seconds for found in by_kind.values() for seconds in found]
    if not of_all:
        return f"Time:     not known before a job is done; {words}."
    total = sum(fmean(by_kind.get(job.kind, of_all)) for job in left)
    return f"Time:     about {duration(total / at_once)} with {words}, {duration(total)} of one core."


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
    gpus = machine.num_gpus()
    if gpus and all(job.demand.device != "cpu" for job in left):
        return f"{gpus} GPUs", gpus
    given = str(getattr(launcher, "slots", "auto"))
    slots = machine.num_cores() if given == "auto" else int(given)
    return f"{slots} cores" if slots > 1 else "1 core", slots
