"""Gradient accumulation (`accumulate=`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decentral.tasks.task import Problem


class Accumulated:
    """A problem whose draw d is the mean of the draws d m, ..., d m + m - 1 of another problem.

    For batches of equal size this is the gradient of a batch m times as large in the memory of one; for running text
    the m batches have equal weights regardless of their tokens. An epoch has 1 / m as many steps. Everything else is
    delegated to the other problem.
    """

    def __init__(self, problem: Problem, number: int) -> None:
        self.problem, self.number = problem, number
        self.steps_per_epoch = problem.steps_per_epoch / number
        self._sum = torch.empty(0)
        self._each: list[float] | None = None
        self._seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def prove(self, x: Tensor, draws: np.ndarray) -> None:
        """See `Problem`."""
        self.problem.prove(x, draws * self.number)

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Return mean losses [r] and mean gradients [r, P] over m draws of each worker."""
        if self._sum.shape != x.shape:
            self._sum = torch.empty_like(x)
        first = draws * self.number
        losses, g = self.problem.gradient(x, first, workers)
        losses, total = losses.clone(), self._sum.copy_(g)
        self._seconds[:] = self._each or []
        for more in range(1, self.number):
            loss, g = self.problem.gradient(x, first + more, workers)
            losses += loss
            total += g
            self._seconds[:] = map(sum, zip(self._seconds, self._each or [], strict=True))
        return losses.div_(self.number), total.div_(self.number)

    def examples(self, draws: np.ndarray) -> list[int]:
        """Return the examples of m times as many draws."""
        return self.problem.examples(draws * self.number)

    def keep_seconds(self) -> list[float] | None:
        """Return the seconds of all m draws together."""
        self._each = self.problem.keep_seconds()
        return None if self._each is None else self._seconds
