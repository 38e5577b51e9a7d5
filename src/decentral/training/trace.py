"""trace=true: every step's models of all workers, in `trace.npz`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.store.files import replacing

_LIMIT_BYTES = 8 << 30


class Trace:
    """iterates [steps + 1, n, P], iterates[0] = x^0; kept in memory until the run ends, and in checkpoints."""

    def __init__(self, num_steps: int, num_workers: int, like: Tensor) -> None:
        shape = (num_steps + 1, num_workers, like.shape[-1])
        if torch.Size(shape).numel() * like.element_size() > _LIMIT_BYTES:
            raise ConfigError(
                f"trace=true would keep {list(shape)} numbers in memory, more than 8 GiB: use fewer steps."
            )
        self.iterates = torch.empty(shape, dtype=like.dtype)

    def record(self, step: int, models: Tensor) -> None:
        """The models of all workers [n, P] after `step` steps."""
        self.iterates[step] = models

    def so_far(self, step: int) -> Tensor:
        """What a checkpoint at `step` needs."""
        return self.iterates[: step + 1]

    def restore(self, iterates: Tensor) -> None:
        """Continue from a checkpoint."""
        self.iterates[: len(iterates)] = iterates

    def save(self, directory: Path, step: int) -> None:
        """Write trace.npz, atomically, up to `step`."""
        with replacing(directory / "trace.npz") as file:
            np.savez_compressed(file, iterates=self.so_far(step).numpy())
