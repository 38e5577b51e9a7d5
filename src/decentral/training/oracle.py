"""The stochastic gradient as an algorithm calls it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.tasks.task import Problem

_ONE = np.int64(1)  # which numpy adds in half the time of a 1


class TrainLosses(NamedTuple):
    """What the last draws of some workers cost."""

    mean: Tensor
    """[k], float64 on the CPU: the loss per draw; nan where nothing was drawn."""
    drawn: Tensor
    """[k], bool: whether anything was."""


class GradientOracle:
    """`oracle(x)`: a stochastic gradient of each local worker at its row of x, and the losses for the record.

    Every call draws the *next* sample of each worker that it is for. Draws are counted per worker, so that two
    gradients in a step are gradients of two batches, and workers need not be equally far.
    """

    def __init__(self, problem: Problem, num_workers: int, device: torch.device) -> None:
        """For the k = `num_workers` local workers of `problem`, whose losses are added up on `device`."""
        self.problem = problem
        self.draws = np.zeros(num_workers, dtype=np.int64)
        """[k]: how many samples each local worker has drawn."""
        self.draws_before = np.zeros_like(self.draws)
        """[k]: the same at the last evaluation."""
        self.losses = torch.zeros(num_workers, dtype=torch.float64, device=device)
        """[k]: the losses since the last evaluation, added up."""
        self.seconds = 0.0
        """How long all calls took, with the drawing of batches."""

    def __call__(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        """Grad F_i(x_i; xi_i) with the next sample xi_i of each worker: [r, P] -> [r, P].

        The rows are those of all local workers, or those of `workers`: places among the local ones, each once. What is
        returned is the caller's until the next call, and may be overwritten.
        """
        began = time.perf_counter()
        if workers is None:
            loss, g = self.problem.gradient(x, self.draws)
            self.losses.add_(loss)
            self.draws += _ONE
            self.seconds += time.perf_counter() - began
            return g
        places = list(workers)
        loss, g = self.problem.gradient(x, self.draws[places], places)
        self.losses[places] += loss
        self.draws[places] += _ONE
        self.seconds += time.perf_counter() - began
        return g

    def rows(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of each local worker, [k] each: tensors that alias it."""
        counts = {"draws": self.draws, "draws at the last evaluation": self.draws_before}
        return {"losses": self.losses, **{name: torch.from_numpy(count) for name, count in counts.items()}}

    def recent_loss(self) -> float:
        """The loss per draw since the last evaluation, mean over the local workers. Waits for the device."""
        drawn = np.maximum(self.draws - self.draws_before, 1)
        return float((self.losses.cpu().numpy() / drawn).mean())

    def take_losses(self) -> TrainLosses:
        """The losses of the local workers since the last call."""
        drawn = torch.from_numpy(self.draws - self.draws_before)
        mean = (self.losses / drawn.to(self.losses)).cpu()
        self.losses.zero_()
        self.draws_before[:] = self.draws
        return TrainLosses(mean, drawn > 0)
