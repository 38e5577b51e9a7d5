"""Several draws for each gradient: `accumulate=`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decentral.compression.row_layout import RowLayout
from decentral.network.network import Network
from decentral.tasks.evaluation import WHOLE, Scope
from decentral.tasks.task import Problem


class Accumulated(Problem):
    """A problem whose draw number d is the mean of the draws d m, ..., d m + m - 1 of another one.

    A gradient of batches of m times the size in the memory of one of them, where batches are of equal size; of running
    text each of the m batches has the same weight, however many tokens are in it. An epoch has 1 / m as many steps.
    """

    def __init__(self, problem: Problem, number: int) -> None:
        self.problem, self.number = problem, number
        self.metrics, self.loss_unit = problem.metrics, problem.loss_unit
        self.steps_per_epoch = problem.steps_per_epoch / number
        self._sum = torch.empty(0)
        self._each: list[float] | None = None
        self._seconds: list[float] = []

    @property
    def data_s(self) -> float:  # type: ignore[override]
        """How long the gradients so far have waited for their batches."""
        return self.problem.data_s

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Problem`; so all that follows."""
        return self.problem.notes

    @property
    def facts(self) -> Mapping[str, Any]:  # type: ignore[override]
        """See `Problem`."""
        return self.problem.facts

    def prove(self, x: Tensor, draws: np.ndarray) -> None:
        """See `Problem`."""
        self.problem.prove(x, draws * self.number)

    def init(self) -> Tensor:
        """See `Problem`."""
        return self.problem.init()

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Mean losses [r] and mean gradients [r, P] of m draws of each worker."""
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

    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        """See `Problem`."""
        return self.problem.worker_statistics(x, workers, scope)

    def average_statistics(self, x: Tensor, part: int, parts: int, scope: Scope = WHOLE) -> Tensor:
        """See `Problem`."""
        return self.problem.average_statistics(x, part, parts, scope)

    def finish(self, statistics: Tensor) -> Tensor:
        """See `Problem`."""
        return self.problem.finish(statistics)

    def keep_seconds(self) -> list[float] | None:
        """Of all m draws together."""
        self._each = self.problem.keep_seconds()
        return None if self._each is None else self._seconds

    def save_tables(self, directory: Path) -> None:
        """See `Problem`."""
        self.problem.save_tables(directory)

    def model_states(self) -> list[dict[str, Any]]:
        """See `Problem`."""
        return self.problem.model_states()

    def state(self) -> list[Any]:
        """See `Problem`."""
        return self.problem.state()

    def load_state(self, state: list[Any]) -> None:
        """See `Problem`."""
        self.problem.load_state(state)

    def model_tensors(self, x: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
        """See `Problem`."""
        return self.problem.model_tensors(x, state)

    def layout(self, x: Tensor) -> RowLayout:
        """See `Problem`."""
        return self.problem.layout(x)

    def average_states(self, net: Network) -> None:
        """See `Problem`."""
        self.problem.average_states(net)

    def averaged_tensors(self, x: Tensor) -> dict[str, Any]:
        """See `Problem`."""
        return self.problem.averaged_tensors(x)

    def begin_with(self, tensors: Mapping[str, Any]) -> Tensor:
        """See `Problem`."""
        return self.problem.begin_with(tensors)

    def close(self) -> None:
        """See `Problem`."""
        self.problem.close()
