"""The contract of a study: cells that say what they still need, and what came out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from decentral.launch.job import Job

Labels = dict[str, str | float | int]
"""What tells a cell from the others, for example {'method': 'RelaySGD', 'topology': 'dbt', 'alpha': 0.1}."""


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


class Curve(NamedTuple):
    """One number over time in one run: lines of curves.csv."""

    labels: Labels
    metric: str
    worker: str
    """'worst', 'mean', 'averaged', a worker's number, or '' where there is no such thing."""
    seed: int
    points: Sequence[tuple[float, float, float]]
    """(step, epoch, value)."""


class Cell(ABC):
    """One entry of the table, or one line of the figure: as many jobs as its tuning and its seeds take.

    Every answer is a pure function of the store, so that a study that was killed goes on where it was.
    """

    labels: Labels

    @abstractmethod
    def jobs(self) -> list[Job]:
        """All jobs known today, finished or not, in the order in which they are wanted."""

    @abstractmethod
    def values(self) -> list[Value]:
        """What came out so far."""

    def curves(self) -> list[Curve]:
        """Numbers over time of the chosen runs, if the study draws them."""
        return []

    def remarks(self) -> list[str]:
        """Sentences on what is wrong with finished jobs, so that their numbers are missing."""
        return []

    def wanted(self) -> int:
        """How many of its values the table counts in the end; 0 if they all come at once."""
        return 0


@dataclass
class Study(ABC):
    """A dataclass whose fields are the keys of conf/study/<name>.yaml; `kind: <name of the class>` chooses it there."""

    name: str = ""
    title: str = ""
    paper: str = ""
    """Folder in results/ and name in published/: 'relaysum' or 'thesis'."""
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

    @abstractmethod
    def cells(self, overrides: Sequence[str], results_dir: Path, config_dir: str | None = None) -> list[Cell]:
        """The cells, composed and checked. `overrides` are the user's, for every run. Raises ConfigError."""

    def decided_keys(self) -> set[str]:
        """Keys of decentral-run that the study itself sets, for each run: a user cannot override them."""
        return {"seed", "run_dir"}
