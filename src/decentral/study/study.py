"""The contract of a study: cells that say what they still need, and what came out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from decentral.scheduling.job import Job
from decentral.study.wording import counted

Labels = dict[str, str | float | int]
"""What tells a cell from the others, for example {'method': 'RelaySGD', 'topology': 'dbt', 'alpha': 0.1}."""


def title_of(labels: Labels) -> str:
    """For example 'RelaySGD, dbt, alpha 0.1'."""
    return ", ".join(f"{v}" if k in ("method", "topology") else f"{k} {v}" for k, v in labels.items() if v != "")


class Value(NamedTuple):
    """One number of one run (or of one simulated run): a line of values.csv."""

    labels: Labels
    value: float
    """What the study is about, in the unit of the published number; nan if there is none, see `status`."""
    metric: str
    """Its name, for example 'test accuracy (%)' or 'steps to 1e-06'."""
    seed: int
    lr: float | None = None
    chosen: bool = True
    """Whether the table counts it; the other runs of a search for the learning rate have False."""
    at_edge: bool = False
    """Whether the chosen rate lies at the edge of what was searched."""
    status: str = "done"
    """done, diverged, damaged (the run's numbers cannot be read), or not reached (no rate led to the target)."""
    worst: float | None = None
    mean: float | None = None
    averaged: float | None = None
    """The same for the worst worker, the mean over workers, and the averaged model, where they are known."""
    published: str = ""
    """'algorithm|topology|setting' of the published number that this one is to be compared with."""
    run: str = ""
    """The id of the job that it comes from."""
    wall_s: float = 0.0


class Meaning(NamedTuple):
    """What is known of a metric of a study, for study.json; all of it in the unit of the values."""

    larger_is_better: bool | None = None
    unit: str = ""
    chance: float | None = None
    """What guessing gives."""


class Point(NamedTuple):
    """A value, and where it is on the axes that are known: see `store.AXES`."""

    value: float
    at: Mapping[str, float]


def in_steps(values: Iterable[tuple[float, float]]) -> list[Point]:
    """Points from (step, value), where a step is an epoch."""
    return [Point(value, {"step": step, "epoch": step}) for step, value in values]


class Curve(NamedTuple):
    """One number over time in one run: lines of curves.csv."""

    labels: Labels
    metric: str
    worker: str
    """'worst', 'mean', 'averaged', a worker's number, or '' where there is no such thing."""
    seed: int
    points: Sequence[Point]


class Cell(ABC):
    """One entry of the table, or one line of the figure: as many jobs as its tuning and its seeds take.

    Every answer is a pure function of the store, so that a study that was killed goes on where it was.
    """

    labels: Labels

    @abstractmethod
    def jobs(self) -> list[Job]:
        """All jobs known today, finished or not, in the order in which they are wanted."""

    def to_come(self) -> list[Job]:
        """Jobs that will be wanted in any case, though not before those of today are finished.

        What is not known of them yet, such as a learning rate, is what it may be: they are there to be counted.
        """
        return []

    def may_come(self) -> list[Job]:
        """Jobs beyond those of `to_come` that searches may still ask for: as many as it may be, there to be counted."""
        return []

    @abstractmethod
    def values(self) -> list[Value]:
        """What came out so far."""

    def curves(self) -> list[Curve]:
        """Numbers over time of the chosen runs, if the study draws them."""
        return []

    def meanings(self) -> dict[str, Meaning]:
        """Of the metrics in its values, by their names, as far as they are known."""
        return {}

    def remarks(self) -> list[str]:
        """Sentences on what is wrong with finished jobs, so that their numbers are missing."""
        return []

    def wanted(self) -> int:
        """How many of its values the table counts in the end; 0 if they all come at once."""
        return 0


def _counted(value: Any, number: int) -> Any:
    """`wording.counted` for every sentence in a value."""
    if isinstance(value, dict):
        return {key: _counted(one, number) for key, one in value.items()}
    if isinstance(value, list):
        return [_counted(one, number) for one in value]
    return counted(value, number) if isinstance(value, str) else value


@dataclass
class Study(ABC):
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
    """What a laptop lacks for it at this scale ('a GPU and CIFAR-10'); '' if nothing."""
    report: dict[str, Any] = field(default_factory=dict)
    """See report/spec.py."""

    timed: ClassVar[frozenset[str]] = frozenset()
    """Keys that elsewhere say where and how something is computed, but change what this study measures: times."""

    def described(self) -> dict[str, Any]:
        """`report` and `departures`, where '{n seeds}' in their sentences has become the number that there are."""
        number = len(getattr(self, "seeds", []))
        return {"report": _counted(self.report, number), "departures": _counted(self.departures, number)}

    def further_facts(self) -> dict[str, Any]:
        """What a kind of study says of itself beyond its keys, for its report: further entries of study.json."""
        return {}

    @abstractmethod
    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """The cells, composed and checked. `overrides` are the user's, for every run. Raises ConfigError."""

    def decided_keys(self) -> set[str]:
        """Keys of decentral-run that the study itself sets, for each run: a user cannot override them."""
        return {"seed", "run_dir"}

    def for_runs(self, override: str) -> str:
        """What an override says to a run, where those of a kind of study may be for some of its runs only."""
        return override
