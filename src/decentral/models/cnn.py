"""A small convolutional network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.models.model import Model

if TYPE_CHECKING:
    from torch import nn


@dataclass
class CNN(Model):
    """Small convolutional network without normalization, for digits and quick experiments.

    The end is two 3x3 convolutions with ReLU, 4x4 max pooling and one linear layer. Images of 16 pixels or more are
    halved before that, as often as it takes, by a 3x3 convolution, ReLU and 2x2 max pooling. The first convolution has
    16 channels, the others 32. On 1 x 8 x 8 digits with 10 classes that is two convolutions and 6,090 parameters.

    Convolutions start at N(0, 2 / fan_in) with bias 0 (He et al., ICCV 2015), so that the deeper networks that larger
    images get train as well.
    """

    name: str = "cnn"
    min_image_size: ClassVar[int] = 4
    small: ClassVar[bool] = True

    def build(self, image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
        """See `Model.build`."""
        from torch import nn

        from decentral.models.layers.convolution import he_convolution

        channels, height, width = image_shape
        pooling = [1, 4]  # after each convolution
        while min(height, width) >= 16:
            pooling.insert(0, 2)
            height, width = height // 2, width // 2
        layers: list[nn.Module] = []
        for size in pooling:
            next_channels = 32 if layers else 16
            layers += [he_convolution(channels, next_channels, "fan_in"), nn.ReLU()]
            if size > 1:
                layers.append(nn.MaxPool2d(size))
            channels = next_channels
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * (height // 4) * (width // 4), num_classes))
