"""Multi-layer perceptron."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from decentral.errors import ConfigError
from decentral.models.model import ImageModel

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import ImageData


@dataclass
class MLP(ImageModel):
    """Multi-layer perceptron: fully connected layers with ReLU between them.

    `hidden` holds the widths of the hidden layers. Without any (`model.hidden=[]`) this is multinomial logistic
    regression, which is convex.

    Raises:
        ConfigError: a width is below 1.
    """

    name: str = "mlp"
    hidden: list[int] = field(default_factory=lambda: [64, 64])

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            raise ConfigError(f"model.hidden={list(self.hidden)} must hold widths of at least 1, like [64, 64].")

    def multiplications(self, data: ImageData) -> float:
        """One for each weight."""
        widths = [prod(data.shape), *self.hidden, data.num_classes]
        return sum(before * after for before, after in pairwise(widths))

    def build(self, data: ImageData) -> nn.Module:
        """Linear layers: images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn

        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(data.shape)
        for next_width in self.hidden:
            layers += [nn.Linear(width, next_width), nn.ReLU()]
            width = next_width
        return nn.Sequential(*layers, nn.Linear(width, data.num_classes))
