"""A model and data of one's own, as in any torch script: nothing here knows decentral."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


class MyNet(nn.Module):
    """Two layers with dropout in between.

    in_features and num_classes are given by the data, because the parameters have these names.

    width      of the hidden layer
    dropout    probability
    """

    def __init__(self, in_features: int, num_classes: int, width: int = 32, dropout: float = 0.1) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, width)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in_features] -> logits [B, num_classes]."""
        return self.output(self.dropout(torch.relu(self.hidden(x))))


def make_data(size: int = 800, noise: float = 0.4) -> tuple[TensorDataset, TensorDataset]:
    """Points around four corners of a cube: (training data, test data).

    size     examples for training; a quarter as many are for testing
    noise    standard deviation around the corners
    """

    def cloud(number: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(number) % 4
        points = torch.eye(4, 6)[labels] + noise * torch.randn(number, 6, generator=generator)
        return TensorDataset(points, labels)

    return cloud(size, seed=1), cloud(size // 4, seed=2)


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """Focal loss (Lin et al., ICCV 2017) with gamma = 2, a number for each example: [B, C], [B] -> [B]."""
    loss = cross_entropy(outputs, targets, reduction="none")
    return (1 - torch.exp(-loss)) ** 2 * loss
