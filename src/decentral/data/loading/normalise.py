"""From bytes to the numbers that a model sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Normalise:
    """x -> (x - mean) / std per channel, for uint8 images [..., C, H, W] on `device`."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device):
        deviation = torch.tensor(std, dtype=torch.float32, device=device)[:, None, None]
        self.scale = 1 / deviation
        self.shift = -torch.tensor(mean, dtype=torch.float32, device=device)[:, None, None] / deviation

    def __call__(self, images: Tensor) -> Tensor:
        """Always a new float32 tensor."""
        return images.to(torch.float32).mul_(self.scale).add_(self.shift)
