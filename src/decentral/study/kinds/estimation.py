"""Distributed mean estimation: the error of several methods over time, for several numbers of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from decentral.composition import compose_all
from decentral.launch.job import Job, TrainingRun, run_command
from decentral.published import key as published_key
from decentral.store import RunStore, Status, read_metrics
from decentral.study.row import Row
from decentral.study.study import Cell, Curve, Labels, Study, Value

_METRIC = "mean squared error"
_EVERY = 5  # steps between the points of the reference line


@dataclass
class EstimationCell(Cell):
    """One run of a method; its dimensions are independent repetitions."""

    labels: Labels
    run: TrainingRun
    study: Estimation
    published: str

    def jobs(self) -> list[Job]:
        """The run."""
        return [self.run]

    def values(self) -> list[Value]:
        """The error after some steps, mean over the workers and the repetitions."""
        if self.run.finished() is not Status.done:
            return []
        errors, facts = self._errors(), RunStore.peek(self.run.directory) or {}
        return [
            Value(
                labels=self.labels | {"after_steps": step},
                value=errors[step],
                metric=_METRIC,
                seed=self.run.config.seed,
                mean=errors[step],
                published=self.key(step),
                run=self.run.id,
                wall_s=float(facts.get("wall_s", 0.0)) / len(self.study.at),
            )
            for step in self.study.at
        ]

    def curves(self) -> list[Curve]:
        """The error over time."""
        if self.run.finished() is not Status.done:
            return []
        points = [(step, step, error) for step, error in self._errors().items() if step]
        return [Curve(self.labels, _METRIC, "mean", self.run.config.seed, points)]

    @property
    def n(self) -> int:
        """Workers."""
        return int(self.labels["num_workers"])

    def key(self, step: int) -> str:
        """Of the published number after so many steps; '' if there is none."""
        return published_key(self.published, self.study.setting, n=self.n, step=step)

    def _errors(self) -> dict[int, float]:
        """Step -> mean over the workers."""
        rows = read_metrics(self.run.directory)
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
        points = [(step, step, self._error(step)) for step in range(_EVERY, max(self.at, default=0) + 1, _EVERY)]
        return [Curve(self.labels, _METRIC, "mean", 0, points)]

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

    def cells(self, overrides: Sequence[str], results_dir: Path, config_dir: str | None = None) -> list[Cell]:
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
