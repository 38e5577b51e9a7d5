"""How workers approach a mean: average consensus, round by round, and distributed mean estimation."""

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
    """config.algo without gradients from x^0 [n, d], standard normal.

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
        """No message may get lost."""
        check_losses(self.config)

    def parameters(self) -> dict[str, Any]:
        """Seeds, rounds and dimension; and the topology, whatever the algorithm."""
        own = {"seeds": self.seeds, "rounds": self.rounds, "dimension": self.dimension}
        return {**own, "over": component_identity(self.config.topology)}

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
        """One, whose values say after how many rounds."""
        return [self.labels | {"after_rounds": ""}]

    def values(self, labels: Labels) -> Iterator[Value]:
        """The error after some rounds."""
        for line in self.found():
            for t in self.at:
                yield Value(labels | {"after_rounds": t}, line["errors"][t], ERROR, line["seed"])

    def curves(self, labels: Labels) -> Iterator[Row]:
        """The error after every round."""
        for line in self.found():
            yield from curve(labels, ERROR, line["seed"], enumerate(line["errors"]))


def no_gradient(x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
    """Zeros like x: an oracle without a task."""
    return x.new_zeros(x.shape)


def starts(n: int, d: int, seed: int) -> Tensor:
    """The vectors of all workers at the start: [n, d], float64."""
    import torch

    return torch.from_numpy(normal(seed, "vectors to average", np.arange(n)[:, None], np.arange(d)))


def error(x: Tensor, mean: Tensor) -> float:
    """||x - 1 mean||_F / ||1 mean||_F for rows x [k, d]."""
    return float((x - mean).norm() / (mean.norm() * len(x) ** 0.5))


# -- mean estimation ---------------------------------------------------------------------------------------------------

METRIC = "mean squared error"
_EVERY = 5  # steps between the points of the exact line


@dataclass
class Estimation(Measurement):
    """One run of a method, whose dimensions are independent repetitions.

    at      steps whose error is a value
    exact   report the error 1 / (n (t + 1)) of the mean of all samples of all workers instead, without running
    """

    name: str = "estimation"
    at: list[int] = field(default_factory=list)
    exact: bool = False

    folder: ClassVar[str] = "runs"
    decides: ClassVar[frozenset[str]] = frozenset({"num_workers"})

    @cached_property
    def run(self) -> TrainingRun:
        """The run."""
        return TrainingRun(self.config, self.title)

    def jobs(self) -> list[Job]:
        """The run, if there is one."""
        return [] if self.exact else [self.run]

    def cells(self) -> list[Labels]:
        """One, whose values say after how many steps."""
        return [self.labels | {"after_steps": ""}]

    def values(self, labels: Labels) -> Iterator[Value]:
        """The error after some steps, mean over the workers and the repetitions."""
        errors, seed = self._errors(), 0 if self.exact else self.config.seed
        for step in self.at:
            mean = None if self.exact else errors[step]
            yield Value(labels | {"after_steps": step}, errors[step], METRIC, seed, mean=mean)

    def curves(self, labels: Labels) -> Iterator[Row]:
        """The error over time."""
        points = [(step, error) for step, error in self._errors().items() if step and step % _EVERY == 0]
        yield from curve(labels, METRIC, 0 if self.exact else self.config.seed, points, "mean")

    def _errors(self) -> dict[int, float]:
        """Step -> mean over the workers."""
        if self.exact:
            return {step: 1 / (self.n * (step + 1)) for step in range(max(self.at, default=0) + 1)}
        rows = read_metrics(self.run.directory)
        wanted = [row for row in rows if (row["metric"], row["worker"]) == ("squared_error", "mean")]
        return {int(row["step"]): float(row["value"]) for row in wanted}
