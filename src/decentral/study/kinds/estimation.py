"""Distributed mean estimation: the error of several methods over time, for several numbers of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from decentral.config.composition import compose_all
from decentral.jobs.training_run import TrainingRun, run_command
from decentral.published import key as published_key
from decentral.scheduling.job import Job
from decentral.store import read_metrics
from decentral.study.job_cell import JobCell
from decentral.study.rows import Row
from decentral.study.study import Cell, Curve, Labels, Study, Value, in_steps

_METRIC = "mean squared error"
_EVERY = 5  # steps between the points of the reference line


@dataclass
class EstimationCell(JobCell[TrainingRun]):
    """One run of a method; its dimensions are independent repetitions."""

    study: Estimation
    published: str

    def read(self) -> Iterator[Value]:
        """The error after some steps, mean over the workers and the repetitions."""
        errors, seed = self._errors(), self.job.config.seed
        for step in self.study.at:
            labels = self.labels | {"after_steps": step}
            yield Value(labels, errors[step], _METRIC, seed, mean=errors[step], published=self.key(step))

    def read_curves(self) -> Iterator[Curve]:
        """The error over time."""
        points = [(step, error) for step, error in self._errors().items() if step]
        yield Curve(self.labels, _METRIC, "mean", self.job.config.seed, in_steps(points))

    @property
    def n(self) -> int:
        """Workers."""
        return int(self.labels["num_workers"])

    def key(self, step: int) -> str:
        """Of the published number after so many steps; '' if there is none."""
        return published_key(self.published, self.study.setting, n=self.n, step=step)

    def _errors(self) -> dict[int, float]:
        """Step -> mean over the workers."""
        rows = read_metrics(self.job.directory)
        wanted = [row for row in rows if (row["metric"], row["worker"]) == ("squared_error", "mean")]
        return {int(row["step"]): float(row["value"]) for row in wanted}


@dataclass
class ReferenceCell(Cell):
    """The error 1 / (n (t + 1)) of the mean of all samples of all workers: nothing to compute."""

    labels: Labels
    at: list[int]

    def jobs(self) -> list[Job]:
        """None."""
        return []

    def values(self) -> list[Value]:
        """At the steps of the other values."""
        return [Value(self.labels | {"after_steps": step}, self._error(step), _METRIC, 0) for step in self.at]

    def curves(self) -> list[Curve]:
        """Up to the last of these steps."""
        points = [(step, self._error(step)) for step in range(_EVERY, max(self.at, default=0) + 1, _EVERY)]
        return [Curve(self.labels, _METRIC, "mean", 0, in_steps(points))]

    def _error(self, step: int) -> float:
        return 1 / (int(self.labels["num_workers"]) * (step + 1))


@dataclass
class Estimation(Study):
    """rows over num_workers; `at` are the steps whose error is a value, `setting` their published key with {n}, {step}.

    reference   the method's name for 1 / (n (t + 1)), the error of the mean of all samples; '' for none
    """

    name: str = "estimation"
    rows: list[Row] = field(default_factory=list)
    num_workers: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    setting: str = ""
    reference: str = ""

    def decided_keys(self) -> set[str]:
        """The numbers of workers; the seed of all runs is the user's, if he gives one."""
        return (super().decided_keys() | {"num_workers"}) - {"seed"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row, then the reference."""
        points = [(row, n) for row in self.rows for n in self.num_workers]
        commands = [[*self.base, *row.base, f"num_workers={n}", *overrides] for row, n in points]
        cells: list[Cell] = []
        for (row, n), command, config in zip(points, commands, compose_all(commands, config_dir), strict=True):
            labels: Labels = {"method": row.method, "topology": row.topology, "num_workers": n, "after_steps": ""}
            title = f"{row.method}, {row.topology}, n {n}"
            run = TrainingRun(config, title, command=run_command(command, config_dir))
            cells.append(EstimationCell(labels, run, self, row.published))
        for n in self.num_workers if self.reference else []:
            labels = {"method": self.reference, "topology": "", "num_workers": n, "after_steps": ""}
            cells.append(ReferenceCell(labels, self.at))
        return cells
