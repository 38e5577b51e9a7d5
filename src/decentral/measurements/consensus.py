"""Average consensus, round by round, and distributed mean estimation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decentral.compression.rows import RowLayout
from decentral.config.identity import component_identity
from decentral.errors import ConfigError
from decentral.measurements.measurement import Measurement, check_losses
from decentral.measurements.training_run import TrainingRun
from decentral.measurements.values import Labels, Row, Value, curve
from decentral.randomness import normal
from decentral.scheduling.job import Job
from decentral.store import read_metrics

if TYPE_CHECKING:
    from torch import Tensor

ERROR = "relative distance of the vectors from their mean"


@dataclass
class Consensus(Measurement):
    """Average consensus: config.algo without gradients from x^0 [n, d], standard normal.

    The error after t rounds is ||x^t - 1 mean||_F / ||1 mean||_F with the mean of x^0.

    seeds       seeds of the vectors
    rounds      number of rounds
    at          rounds whose error is a value
    dimension   dimension of the vectors
    """

    name: str = "consensus"
    seeds: list[int] = field(default_factory=list)
    rounds: int = 100
    at: list[int] = field(default_factory=list)
    dimension: int = 100

    folder: ClassVar[str] = "consensus"
    row_labels: ClassVar[tuple[str, ...]] = ("graph", "averaging")

    def __post_init__(self) -> None:
        if not all(0 <= t <= self.rounds for t in self.at) or not self.at:
            raise ConfigError(f"at={self.at} is out of range: name rounds from 0 to rounds={self.rounds}.")

    def check(self) -> None:
        """Check that no message can get lost."""
        check_losses(self.config)

    def parameters(self) -> dict[str, Any]:
        """Return the seeds, rounds and dimension, and the topology for every algorithm."""
        settings = {"seeds": self.seeds, "rounds": self.rounds, "dimension": self.dimension}
        return {**settings, "over": component_identity(self.config.topology)}

    def line(self, seed: int) -> dict[str, Any]:
        """The errors after 0, 1, ..., `rounds` rounds."""
        from decentral.training.method import local_network, with_rate
        from decentral.training.stepper import Stepper

        net = local_network(self.config)
        x = starts(net.n, self.dimension, seed)
        mean = x.mean(0)
        layout = RowLayout.flat(self.dimension)
        stepper = Stepper(with_rate(self.config, lambda t: 1.0, layout), net, no_gradient, x.clone())
        errors = [error(x, mean)]
        for _ in range(self.rounds):
            stepper.step()
            errors.append(error(stepper.models, mean))
        return {"errors": errors}

    def cells(self) -> list[Labels]:
        """Return one cell; its values have the number of rounds as a label."""
        return [self.labels | {"after_rounds": ""}]

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return the error after some rounds."""
        for line in self.found():
            for t in self.at:
                yield Value(labels | {"after_rounds": t}, line["errors"][t], ERROR, line["seed"])

    def curves(self, labels: Labels) -> Iterator[Row]:
        """Return the error after every round."""
        for line in self.found():
            yield from curve(labels, ERROR, line["seed"], enumerate(line["errors"]))


def no_gradient(x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
    """Return zeros like x: an oracle without a task."""
    return x.new_zeros(x.shape)


def starts(n: int, d: int, seed: int) -> Tensor:
    """Draw the initial vectors of all workers: [n, d], float64."""
    import torch

    return torch.from_numpy(normal(seed, "vectors to average", np.arange(n)[:, None], np.arange(d)))


def error(x: Tensor, mean: Tensor) -> float:
    """Return ||x - 1 mean||_F / ||1 mean||_F for rows x [k, d]."""
    return float((x - mean).norm() / (mean.norm() * len(x) ** 0.5))


# -- mean estimation ---------------------------------------------------------------------------------------------------

METRIC = "mean squared error"
_EVERY = 5  # steps between the points of the exact line


@dataclass
class Estimation(Measurement):
    """Distributed mean estimation: one run of a method, whose dimensions are independent repetitions.

    at      steps whose error is a value
    exact   report the error 1 / (n (t + 1)) of the mean of all samples of all workers, without a run
    """

    name: str = "estimation"
    at: list[int] = field(default_factory=list)
    exact: bool = False

    folder: ClassVar[str] = "runs"
    decides: ClassVar[frozenset[str]] = frozenset({"num_workers"})

    @cached_property
    def run(self) -> TrainingRun:
        """Return the run."""
        return TrainingRun(self.config, self.title)

    def jobs(self) -> list[Job]:
        """Return the run, if there is one."""
        return [] if self.exact else [self.run]

    def cells(self) -> list[Labels]:
        """Return one cell; its values have the number of steps as a label."""
        return [self.labels | {"after_steps": ""}]

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return the error after some steps, as the mean over the workers and the repetitions."""
        errors, seed = self._errors(), 0 if self.exact else self.config.seed
        for step in self.at:
            mean = None if self.exact else errors[step]
            yield Value(labels | {"after_steps": step}, errors[step], METRIC, seed, mean=mean)

    def curves(self, labels: Labels) -> Iterator[Row]:
        """Return the error over time."""
        points = [(step, error) for step, error in self._errors().items() if step and step % _EVERY == 0]
        yield from curve(labels, METRIC, 0 if self.exact else self.config.seed, points, "mean")

    def _errors(self) -> dict[int, float]:
        """Return step -> mean error over the workers."""
        if self.exact:
            return {step: 1 / (self.n * (step + 1)) for step in range(max(self.at, default=0) + 1)}
        rows = read_metrics(self.run.directory)
        wanted = [row for row in rows if (row["metric"], row["worker"]) == ("squared_error", "mean")]
        return {int(row["step"]): float(row["value"]) for row in wanted}
