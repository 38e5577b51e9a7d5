"""Multi-layer perceptron."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, ClassVar

from decentral.errors import ConfigError
from decentral.models.model import Model

if TYPE_CHECKING:
    from torch import nn


@dataclass
class MLP(Model):
    """Multi-layer perceptron: fully connected layers with ReLU between them.

    `hidden` holds the widths of the hidden layers. Without any (`model.hidden=[]`) this is multinomial logistic
    regression, which is convex.

    Raises:
        ConfigError: a width is below 1.
    """

    name: str = "mlp"
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    small: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            raise ConfigError(f"model.hidden={list(self.hidden)} must hold widths of at least 1, like [64, 64].")

    def build(self, image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
        """See `Model.build`."""
        from torch import nn

        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(image_shape)
        for next_width in self.hidden:
            layers += [nn.Linear(width, next_width), nn.ReLU()]
            width = next_width
        return nn.Sequential(*layers, nn.Linear(width, num_classes))
