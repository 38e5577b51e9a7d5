"""Distributed mean estimation."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar

from decentral.errors import check_at_least, check_range
from decentral.host.memory import refuse_if_too_large
from decentral.tasks.task import Problem, Task

if TYPE_CHECKING:
    import torch

    from decentral.config.schema import Config


@dataclass
class MeanEstimation(Task):
    """Every worker draws a sample in every step; all of them estimate the mean (RelaySum paper, section 3).

        s_i^t ~ N(mean, std^2) in each of `dimension` coordinates;  gradient x_i - s_i^t, of 1/2 ||x_i - s_i^t||^2

    RelaySum: `algo=relay_mean topology=chain`. Gossip: `algo=dpsgd schedule=inverse lr=1 topology=ring`. The metric is
    the squared error per coordinate; one run with many dimensions is many independent runs with one.
    """

    name: str = "mean_estimation"
    mean: float = 1.0
    std: float = 1.0
    dimension: int = 1
    eval_every_epochs: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        check_range("task.std", self.std, 0.0, inf)
        check_at_least("task.dimension", self.dimension)

    def check(self, config: Config) -> None:
        """The models have to fit into memory."""
        assert config.num_workers is not None
        refuse_if_too_large(f"task.dimension={self.dimension}", 8.0 * config.num_workers * self.dimension)

    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The stream of samples."""
        from decentral.tasks.problems.samples import SampleMean

        return SampleMean(self.mean, self.std, self.dimension, config.seed, workers, device)
