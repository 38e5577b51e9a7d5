"""What a study needs: how many jobs, how much time, memory and disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from decentral.host import devices
from decentral.host.memory import memory_bytes
from decentral.scheduling.job import Job
from decentral.scheduling.launchers.launcher import Launcher
from decentral.study.costs import Cost, Costs, costs_of
from decentral.study.progress import Unfinished
from decentral.study.study import Cell
from decentral.terminal.text import aligned, duration, in_bytes

_LISTED = 60  # more cells than that are only counted


class _Entry(NamedTuple):
    """What a cell adds to the study: jobs that no cell above it has."""

    cell: Cell
    known: list[Job]
    done: int
    to_come: list[Job]
    may_come: list[Job]
    shared: int

    def left(self) -> list[Job]:
        return [*(job for job in self.known if job.finished() is None), *self.to_come]


def plan(
    name: str,
    scale: str,
    cells: Sequence[Cell],
    launcher: Launcher,
    results_dir: Path,
    measures: bool,
    tell: Callable[[str], None],
) -> str:
    """A line for each cell and sentences on the whole; rows add up to the total, for a job of several cells is counted
    in the first of them."""
    source = Unfinished(cells)
    pending = source.pending()
    entries = _entries(cells)
    left = [job for entry in entries for job in entry.left()]
    costs = costs_of(left, [source.jobs[id] for id in source.finished], results_dir, measures, tell)
    begun = sum(job.held() > 0 for job in pending)
    lines = [] if len(cells) > _LISTED else [_table(entries, costs), ""]
    to_come = sum(len(entry.to_come) for entry in entries)
    lines.append(
        f"{name} at scale={scale}: {len(cells)} cells, {len(source.jobs)} jobs known today ({len(source.finished)} "
        f"done, {len(pending)} to do{f', {begun} of them begun' if begun else ''})"
        + (f", and {to_come} to come when searches for learning rates are over" if to_come else "")
        + (f". {_more(entries)}" if to_come else ".")
    )
    if left:
        lines += _needs(left, costs, launcher, _at_most(entries, costs))
    return "\n".join(lines)


def _more(entries: Sequence[_Entry]) -> str:
    most = sum(len(entry.may_come) for entry in entries)
    return f"Searches may ask for {most} more at most as they go." if most else "A search may ask for more as it goes."


def _at_most(entries: Sequence[_Entry], costs: Costs) -> list[tuple[Job, Cost]]:
    """What searches may still ask for, each like the mean of the jobs of its cell."""
    found = []
    for entry in entries:
        known = [costs.found[job.id].seconds or 0.0 for job in entry.left() if costs.found[job.id].seconds]
        if known:
            found += [(job, Cost(seconds=sum(known) / len(known))) for job in entry.may_come]
    return found


def _entries(cells: Sequence[Cell]) -> list[_Entry]:
    """What is known today is counted before what is to come, which may be among it."""
    known: set[str] = set()
    owned: list[tuple[Cell, list[Job], int]] = []
    for cell in cells:
        jobs = list({job.id: job for job in cell.jobs()}.values())
        owned.append((cell, [job for job in jobs if job.id not in known], sum(job.id in known for job in jobs)))
        known |= {job.id for job in jobs}
    entries = []
    for cell, own, shared in owned:
        later = {job.id: job for job in cell.to_come()}
        new = [job for id, job in later.items() if id not in known]
        shared += sum(id in known and all(id != job.id for job in cell.jobs()) for id in later)
        known |= later.keys()
        entries.append(_Entry(cell, own, sum(job.finished() is not None for job in own), new, [], shared))
    for place, entry in enumerate(entries):
        possible = {job.id: job for job in entry.cell.may_come() if job.id not in known}
        entries[place] = entry._replace(may_come=list(possible.values()))
        known |= possible.keys()
    return entries


def _table(entries: Sequence[_Entry], costs: Costs) -> str:
    """A line for each cell, and one for all."""
    labels = list(dict.fromkeys(label for entry in entries for label in entry.cell.labels))
    comes, shares = any(entry.to_come for entry in entries), any(entry.shared for entry in entries)

    def row(names: list[str], some: Sequence[_Entry]) -> list[str]:
        left = [job for entry in some for job in entry.left()]
        return [
            *names,
            str(sum(len(entry.known) for entry in some)),
            *([str(sum(entry.shared for entry in some) if len(some) == 1 else "")] if shares else []),
            str(sum(entry.done for entry in some)),
            *([str(sum(len(entry.to_come) for entry in some))] if comes else []),
            *_numbers([costs.found[job.id] for job in left]),
        ]

    head = [
        *labels,
        "jobs known",
        *(["of rows above"] if shares else []),
        "done",
        *(["to come"] if comes else []),
        *("core time", "memory", "disk"),
    ]
    rows = [row([str(entry.cell.labels.get(label, "")) for label in labels], [entry]) for entry in entries]
    rows.append(row(["total", *[""] * (len(labels) - 1)], entries))
    return aligned([head, *rows], left=len(labels))


def _numbers(costs: Sequence[Cost]) -> list[str]:
    """Time and disk of all of them and memory of the largest: '?' where nothing is known, '>' where not all is."""
    if not costs:
        return ["", "", ""]
    seconds, disk = _total(cost.seconds for cost in costs), _total(cost.disk for cost in costs)
    memory = [cost.memory for cost in costs if cost.memory is not None]
    return [
        _shown(seconds, duration),
        in_bytes(float(f"{max(memory):.2g}")) if memory else "?",
        _shown(disk, lambda number: in_bytes(float(f"{number:.2g}"))),
    ]


class _Sum(NamedTuple):
    value: float
    known: int
    unknown: int


def _total(values: Iterable[float | None]) -> _Sum:
    found = list(values)
    known = [value for value in found if value is not None]
    return _Sum(sum(known), len(known), len(found) - len(known))


def _shown(total: _Sum, text: Callable[[float], str]) -> str:
    if not total.known:
        return "?"
    return f"{'> ' if total.unknown else ''}{text(total.value)}"


def _needs(left: Sequence[Job], costs: Costs, launcher: Launcher, further: Sequence[tuple[Job, Cost]]) -> list[str]:
    """Time, memory and disk of all jobs, and where the estimates come from; with `further` jobs that
    searches may ask for, half of them are reckoned with."""
    known = [(job, costs.found[job.id]) for job in left if costs.found[job.id].seconds is not None]
    places = _places(launcher, left, costs)
    beside = f" (and what the other {len(left) - len(known)} take)" if len(known) < len(left) else ""
    lines = []
    if known:
        total, least = sum(cost.seconds or 0.0 for _, cost in known), _wall_s(known, places)
        most = _wall_s([*known, *further], places)
        total += sum(cost.seconds or 0.0 for _, cost in further) / 2
        ends = f"; {duration(least)} if every search ends soon, {duration(most)} if none does" if further else ""
        wall = (least + most) / 2
        lines.append(
            f"Time:     about {duration(wall)} with {places.words}, {duration(total)} of one of them{beside}{ends}."
        )
    else:
        lines.append(f"Time:     not known before a job is done; {places.words}.")
    memory = sorted((cost.memory for cost in costs.found.values() if cost.memory is not None), reverse=True)
    if memory:
        together = costs.shared + sum(memory[: places.at_once])
        lines.append(
            f"Memory:   about {_bytes(costs.shared + memory[0])} for the largest job, {_bytes(together)} for "
            f"{places.at_once} at once; {places.room}."
        )
    disk = _total(costs.found[job.id].disk for job in left)
    if disk.known:
        checkpoints = sorted((2 * cost.checkpoint for cost in costs.found.values()), reverse=True)[: places.at_once]
        more = f", and up to {_bytes(sum(checkpoints))} for checkpoints while they run" if sum(checkpoints) else ""
        lines.append(f"Disk:     about {_bytes(disk.value)} for results{beside}{more}.")
    return [*lines, *costs.notes]


def _bytes(number: float) -> str:
    return in_bytes(float(f"{number:.2g}"))


class _Places(NamedTuple):
    """Where the jobs run."""

    side_by_side: int
    """Cores, GPUs, or jobs of a cluster, side by side."""
    at_once: int
    """Jobs."""
    words: str
    room: str
    """The memory that there is."""


def _places(launcher: Launcher, left: Sequence[Job], costs: Costs) -> _Places:
    """As the launcher would place them."""
    if (most := getattr(launcher, "max_jobs", None)) is not None:
        at_once = min(len(left), most)
        words = f"{_counted(at_once, 'job')} at once by launcher={getattr(launcher, 'name', '')}"
        return _Places(at_once, at_once, f"{words}, if its machines are like this one", "a cluster's machines differ")
    given = str(getattr(launcher, "slots", "auto"))
    slots = devices.num_cores() if given == "auto" else int(given)
    gpus = devices.num_gpus()
    on_gpus = bool(gpus) and all(job.demand.device != "cpu" for job in left)
    needed = max(1, min(job.demand.processes or 1 for job in left))
    if any(job.demand.alone for job in left):
        at_once = 1
    elif on_gpus:
        at_once = max(1, min(len(left), slots, gpus * _runs_per_gpu(launcher, left, costs) // needed))
    else:
        at_once = max(1, min(len(left), slots // needed))
    if on_gpus:
        free = sum(devices.free_gpu_memory().get(gpu, 0) for gpu in devices.visible_gpus())
        words = f"{_counted(at_once, 'job')} at once on {_counted(gpus, 'GPU')}"
        return _Places(gpus, at_once, words, f"the GPUs have {_bytes(free)} free")
    words = f"{_counted(at_once, 'job')} at once on {_counted(slots, 'core')}"
    return _Places(slots, at_once, words, f"this machine has {_bytes(memory_bytes())}")


def _runs_per_gpu(launcher: Launcher, left: Sequence[Job], costs: Costs) -> int:
    given = str(getattr(launcher, "runs_per_gpu", "auto"))
    if given != "auto":
        return int(given)
    largest = max((cost.memory or 0.0 for cost in costs.found.values()), default=0.0)
    free = min(devices.free_gpu_memory().values(), default=0)
    return max(1, int(free / largest)) if largest else 1


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _wall_s(jobs: Sequence[tuple[Job, Cost]], places: _Places) -> float:
    """Those that want the machine for themselves one after the other, the others side by side."""

    def cores(job: Job) -> int:
        workers = getattr(getattr(job, "config", None), "num_workers", None) or 1
        return max(1, min(places.side_by_side, job.demand.processes or workers))

    alone = sum((cost.seconds or 0.0) / cores(job) for job, cost in jobs if job.demand.alone)
    together = [(job, cost.seconds or 0.0) for job, cost in jobs if not job.demand.alone]
    wide = min(places.side_by_side, sum(cores(job) for job, _ in together)) or 1
    longest = max((seconds / cores(job) for job, seconds in together), default=0.0)
    return alone + max(longest, sum(seconds for _, seconds in together) / wide)
