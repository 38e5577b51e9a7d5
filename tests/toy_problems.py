"""Tasks that only tests need; in a module of their own, so that other processes can open them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decentral.config.schema import Config
from decentral.tasks.convex import Quadratics
from decentral.tasks.problems.convex import QuadraticProblem, random_problem


class Drifting(QuadraticProblem):
    """Every worker's gradients drift by a direction of its own that turns with each: what it has to remember."""

    def __init__(self, n: int, config: Config, workers: range, device: torch.device) -> None:
        super().__init__(random_problem(n, 5, 0.5, 1.0, 1.0, 10.0, 1), 0.0, config.seed, workers, device)
        self.drift = [0.1 * torch.arange(5, dtype=torch.float64) + worker for worker in workers]
        self.count = [0 for _ in workers]

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        losses, g = super().gradient(x, draws, workers)
        places = range(len(self.workers)) if workers is None else workers
        for j, i in enumerate(places):
            self.count[i] += 1
            self.drift[i] = self.drift[i].roll(1) / self.count[i] ** 0.1
            g[j] += self.drift[i]
        return losses, g

    def state(self) -> list[Any]:
        return [{"drift": drift, "count": count} for drift, count in zip(self.drift, self.count, strict=True)]

    def load_state(self, state: list[Any]) -> None:
        self.drift = [one["drift"].clone() for one in state]
        self.count = [one["count"] for one in state]


@dataclass
class DriftingQuadratics(Quadratics):
    """Opens it."""

    def open(self, config: Config, workers: range, device: torch.device) -> Drifting:
        assert config.num_workers is not None
        return Drifting(config.num_workers, config, workers, device)
