"""Distributed mean estimation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.host.memory import refuse_if_too_large
from decentral.settings import setting
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
    std: float = setting(1.0, at_least=0)
    dimension: int = setting(1, at_least=1)
    eval_every_epochs: ClassVar[float] = 5.0

    def check(self, config: Config) -> None:
        """The models have to fit into memory."""
        assert config.num_workers is not None
        refuse_if_too_large(f"task.dimension={self.dimension}", 8.0 * config.num_workers * self.dimension)

    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The stream of samples."""
        from decentral.tasks.problems.samples import SampleMean

        return SampleMean(self.mean, self.std, self.dimension, config.seed, workers, device)
