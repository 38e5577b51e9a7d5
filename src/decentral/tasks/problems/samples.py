"""A stream of samples whose mean is wanted: what task=mean_estimation works on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from decentral.randomness import normal
from decentral.tasks.task import Metric, Problem


class SampleMean(Problem):
    """s_i^t ~ N(mean, std^2), the gradient is x_i - s_i^t; float64."""

    metrics = (Metric("objective", "squared_error"),)
    steps_per_epoch = 1.0

    def __init__(self, mean: float, std: float, d: int, seed: int, workers: range, device: torch.device) -> None:
        self.mean, self.std, self.d, self.seed, self.workers, self.device = mean, std, d, seed, workers, device

    def init(self, seed: int) -> Tensor:
        """Zeros [d]."""
        return torch.zeros(self.d, dtype=torch.float64, device=self.device)

    def gradient(self, x: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """1/2 ||x_i - s_i||^2 [k] and x_i - s_i [k, d]."""
        worker, coordinate = np.array(self.workers)[:, None], np.arange(self.d)
        sample = self.mean + self.std * normal(self.seed, "sample", index, worker, coordinate)
        g = x - torch.from_numpy(sample).to(x)
        return g.square().sum(1) / 2, g

    def evaluate_workers(self, x: Tensor) -> Tensor:
        """Mean over coordinates of (x_i - mean)^2: [k, 1]."""
        return (x - self.mean).square().mean(1, keepdim=True).cpu()

    def evaluate_average(self, x: Tensor, part: int, parts: int) -> Tensor:
        """The same of one estimate [d]: [1]."""
        found = self.evaluate_workers(x[None])[0]
        return found if part == 0 else torch.zeros_like(found)
