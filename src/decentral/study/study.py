"""The interface of a study: cells with their pending jobs and results; the rows and columns of its YAML."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import Any, ClassVar

from decentral.measurements.values import Labels, Value
from decentral.measurements.values import Row as Line
from decentral.scheduling.job import Job
from decentral.settings import Settings
from decentral.store import RunStore
from decentral.terminal.console import aligned, duration

_LISTED = 60
"""Maximum number of cells listed in a plan; more are counted."""


class Cell(ABC):
    """One entry of the table, or one line of the figure, with the jobs of its tuning and its seeds.

    Every result is a pure function of the store, so an interrupted study resumes where it was.
    """

    labels: Labels

    @abstractmethod
    def jobs(self) -> list[Job]:
        """All jobs known today, finished or not, in the order in which they are wanted."""

    def sources(self) -> list[Job]:
        """Return its currently known jobs behind its values, which identify the cell."""
        return self.jobs()

    def to_come(self) -> list[Job]:
        """Return jobs needed in any case, after the current ones.

        Unknown settings, such as a learning rate, have a possible value: the jobs serve to be counted.
        """
        return []

    @abstractmethod
    def values(self) -> list[Value]:
        """Return the values so far."""

    def curves(self) -> list[Line]:
        """Numbers over time of the chosen runs, if the study draws them: lines of curves.csv."""
        return []

    def wanted(self) -> int:
        """Return the final number of values that the table counts; 0 if they all come at once."""
        return 0


class Unfinished:
    """The source of a scheduler: the needed, unfinished jobs.

    Cells take turns, so that every search gets a first job before any gets a second.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.jobs: dict[str, Job] = {}
        """All jobs known so far, by id: cells may share some."""
        self.finished: set[str] = set()
        """The ids of those that are finished, as of the last `pending`."""

    def pending(self) -> list[Job]:
        """The jobs to start, in turns through the cells."""
        known = [cell.jobs() for cell in self.cells]
        self.jobs = {job.id: job for jobs in known for job in jobs} | self.jobs
        self.finished |= {id for id, job in self.jobs.items() if id not in self.finished and job.finished() is not None}
        waiting = [[job.id for job in jobs if job.id not in self.finished] for jobs in known]
        turns = max(map(len, waiting), default=0)
        ordered = [ids[turn] for turn in range(turns) for ids in waiting if turn < len(ids)]
        return [self.jobs[id] for id in dict.fromkeys(ordered)]


def plan(name: str, scale: str, cells: Sequence[Cell]) -> str:
    """A line for each cell and sentences on the whole; a job of several cells is counted in the first of them."""
    source = Unfinished(cells)
    pending = source.pending()
    seen: set[str] = set()
    known = [_not_seen(cell.jobs(), seen) for cell in cells]
    later = [_not_seen(cell.to_come(), seen) for cell in cells]
    labels = list(dict.fromkeys(label for cell in cells for label in cell.labels))
    done = [sum(job.id in source.finished for job in own) for own in known]
    counts = list(zip(map(len, known), done, map(len, later), strict=True))
    totals = [sum(column) for column in zip(*counts, strict=True)]
    rows = [[*labels, "jobs known", "done", "to come"]]
    for cell, numbers in zip(cells, counts, strict=True):
        rows.append([*(str(cell.labels.get(label, "")) for label in labels), *map(str, numbers)])
    rows.append(["total", *[""] * (len(labels) - 1), *map(str, totals)])
    lines = [] if len(cells) > _LISTED else [aligned(rows, left=len(labels)), ""]
    more = f", plus {totals[2]} after the learning-rate searches, which may add more"
    lines.append(
        f"{name} at scale={scale}: {len(cells)} cells, {totals[0]} jobs known so far ({totals[1]} done, "
        f"{len(pending)} to do){more if totals[2] else ''}."
    )
    if left := len(pending) + totals[2]:
        took = [float((RunStore.peek(source.jobs[id].directory) or {}).get("wall_s", 0.0)) for id in source.finished]
        told = f"about {duration(fmean(took) * left)} sequentially" if took else "unknown until a job is finished"
        lines.append(f"Time:     {told}.")
    return "\n".join(lines)


def _not_seen(jobs: Iterable[Job], seen: set[str]) -> list[Job]:
    """Return the new jobs, and mark them as seen."""
    new = {job.id: job for job in jobs if job.id not in seen}
    seen.update(new)
    return list(new.values())


@dataclass
class Row(Settings):
    """A method, or whatever else a study has in its rows.

    method, topology    as tables and figures show them
    base                overrides of its runs
    published           'algorithm|topology' of its numbers in the published table; '' if none
    """

    method: str = ""
    topology: str = ""
    base: list[str] = field(default_factory=list)
    published: str = ""


def points(columns: Mapping[str, list[Any]], only: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return label -> value for every combination of values; `only` replaces the values of some labels."""
    values = {label: only.get(label, listed) for label, listed in columns.items()}
    return [dict(zip(values, point, strict=True)) for point in product(*values.values())]


def overrides_of(point: Mapping[str, Any], keys: Mapping[str, str]) -> list[str]:
    """Return the overrides of a combination for decentral-run; `keys` maps labels to keys of other names.

    A label with the empty value '' gives no override: its setting does not exist in that row.
    """
    given = {keys.get(label, label): "null" if value is None else value for label, value in point.items()}
    return [f"{key}={value}" for key, value in given.items() if value != ""]


_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_PLACE = re.compile(r"\{n ([^{}]+)\}")


def counted(text: str, number: int) -> str:
    """Return the text with '{n seeds}' replaced by 'three seeds' or 'one seed'."""
    word = _WORDS[number] if number < len(_WORDS) else str(number)
    return _PLACE.sub(lambda found: f"{word} {found[1].removesuffix('s') if number == 1 else found[1]}", text)


def _counted(value: Any, number: int) -> Any:
    """Apply `counted` to every sentence in a value."""
    if isinstance(value, dict):
        return {key: _counted(one, number) for key, one in value.items()}
    if isinstance(value, list):
        return [_counted(one, number) for one in value]
    return counted(value, number) if isinstance(value, str) else value


SWEEPS = "sweeps"
"""The `paper` of a user's sweep that is saved as a study: its runs are those of the sweep."""


@dataclass
class Study(Settings, ABC):
    """A dataclass whose fields are the keys of conf/study/<name>.yaml; `kind: <name of the class>` chooses it there."""

    name: str = ""
    title: str = ""
    paper: str = ""
    """Folder in results/ and name in published/: 'relaysum', 'thesis', 'bluefog', or your own."""
    item: str = ""
    """As the paper calls it: 'Table 1'."""
    base: list[str] = field(default_factory=list)
    """Overrides of all runs, as for decentral-run."""
    departures: list[str] = field(default_factory=list)
    """Sentences: where this differs from what the authors did."""
    needs: str = ""
    """Requirements beyond a laptop at this scale ('a GPU and CIFAR-10'); '' if none."""
    report: dict[str, Any] = field(default_factory=dict)
    """See report/spec.py."""

    timed: ClassVar[frozenset[str]] = frozenset()
    """Keys that elsewhere say where and how something is computed, but change what this study measures: times."""

    def described(self) -> dict[str, Any]:
        """`report` and `departures`, where '{n seeds}' in their sentences has become the number that there are."""
        number = len(getattr(self, "seeds", []))
        return {"report": _counted(self.report, number), "departures": _counted(self.departures, number)}

    def further_facts(self) -> dict[str, Any]:
        """Return further entries of study.json for the report of this kind of study."""
        return {}

    @abstractmethod
    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Return the cells, composed and checked. `overrides` are the user's, for every run. Raises ConfigError."""

    def decided_keys(self) -> set[str]:
        """Keys of decentral-run that the study itself sets, for each run: a user cannot override them."""
        return {"seed", "run_dir"}

    def for_runs(self, override: str) -> str:
        """Return an override as it applies to a run; a kind of study may limit it to some of its runs."""
        return override
