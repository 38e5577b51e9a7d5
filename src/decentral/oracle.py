"""The stochastic gradient as an algorithm calls it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from decentral.tasks.task import Problem


@dataclass
class GradientOracle:
    """The algorithm's view of the problem: one stochastic gradient per call, and the losses for the record."""

    problem: Problem
    losses: Tensor  # [k], summed since the last evaluation
    t: int = 0
    count: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Grad F_i(x_i; xi_i) for the local workers: [k, P] -> [k, P]."""
        loss, g = self.problem.gradient(x, self.t)
        self.losses += loss
        self.count += 1
        return g

    def at(self, t: int) -> GradientOracle:
        """The oracle for step t: what it draws is addressed by the step."""
        self.t = t
        return self

    def recent_loss(self) -> float:
        """Mean over the local workers and the steps since the last `mean_loss`. Waits for the device."""
        return self.losses.mean().item() / max(1, self.count)

    def mean_loss(self) -> Tensor:
        """Mean of the losses since the last call [k], nan if there were none."""
        mean = self.losses / self.count if self.count else torch.full_like(self.losses, math.nan)
        self.losses.zero_()
        self.count = 0
        return mean
