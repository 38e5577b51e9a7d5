"""Gradients that are computed ahead of simulated time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from decentral.training.oracle import GradientOracle


class AheadOracle(GradientOracle):
    """An oracle whose losses may be computed ahead: they count once the worker completes the gradient."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.early = torch.zeros_like(self.losses)
        """[k]: the losses of gradients computed ahead."""
        self.is_early = np.zeros(len(self.workers), dtype=bool)
        """[k]: whether a worker's last gradient was computed ahead."""
        self._over: list[int] = []
        """Workers whose gradient was computed ahead and is complete, but not yet counted in `losses`."""

    def prefetch(self, x: Tensor, places: list[int]) -> Tensor:
        """Compute some workers' gradients ahead; their losses count once these are complete: [r, P] -> [r, P]."""
        self.counted()
        loss, g = self._computed(x, places)
        if places == self._all:
            self.early[:] = loss
        else:
            self.early[places] = loss.to(self.early)
        self.is_early[places] = True
        return g

    def complete(self, place: int) -> None:
        """Mark this worker's gradient, if it was computed ahead, as complete: its loss counts from now on."""
        if self.is_early[place]:
            self._over.append(place)
            self.is_early[place] = False

    def counted(self) -> np.ndarray:
        """See `GradientOracle`; a worker has at most one complete gradient that is not counted yet."""
        if len(self._over) == len(self.workers):
            self.losses += self.early
        elif self._over:
            self.losses[self._over] += self.early[self._over]
        self._over.clear()
        return self.draws - self.is_early
