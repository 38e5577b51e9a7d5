"""A stream of samples whose mean is wanted: what task=mean_estimation works on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decentral.randomness import normal
from decentral.store.metadata import Metric
from decentral.tasks.evaluation import WHOLE, Scope
from decentral.tasks.task import Problem


class SampleMean(Problem):
    """s_i^t ~ N(mean, std^2), the gradient is x_i - s_i^t; float64."""

    metrics = (Metric("objective", "squared_error"),)
    steps_per_epoch = 1.0

    def __init__(self, mean: float, std: float, d: int, seed: int, workers: range, device: torch.device) -> None:
        self.mean, self.std, self.d, self.seed, self.device = mean, std, d, seed, device
        self.numbers = np.arange(workers.start, workers.stop)

    def init(self) -> Tensor:
        """Zeros [d]."""
        return torch.zeros(self.d, dtype=torch.float64, device=self.device)

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """1/2 ||x_i - s_i||^2 [r] and x_i - s_i [r, d]."""
        numbers = self.numbers if workers is None else self.numbers[workers]
        drawn = normal(self.seed, "sample", draws[:, None], numbers[:, None], np.arange(self.d))
        sample = self.mean + self.std * drawn
        g = x - torch.from_numpy(sample).to(x)
        return g.square().sum(1) / 2, g

    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        """Mean over coordinates of (x_i - mean)^2: [r, 1]."""
        x = x if workers is None else x[workers]
        return (x - self.mean).square().mean(1, keepdim=True).cpu()
