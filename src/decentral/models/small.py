"""Small networks for images: a multi-layer perceptron, and a convolutional network."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, ClassVar

from decentral.models.model import ImageModel
from decentral.settings import setting

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
    hidden: list[int] = setting([64, 64], at_least=1)

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


@dataclass
class CNN(ImageModel):
    """Small convolutional network without normalization, for digits and quick experiments.

    The end is two 3x3 convolutions with ReLU, 4x4 max pooling and one linear layer. Images of 16 pixels or more are
    halved before that, as often as it takes, by a 3x3 convolution, 2x2 max pooling and ReLU. The first convolution has
    16 channels, the others 32. On 1 x 8 x 8 digits with 10 classes that is two convolutions and 6,090 parameters.

    Pooling comes before ReLU, which has fewer pixels to look at then: a tenth off the time of a pass of 32 x 32 pixels.
    Values and gradients are those of ReLU before pooling, bit for bit, since ReLU is monotonic.

    Convolutions start at N(0, 2 / fan_in) with bias 0 (He et al., ICCV 2015), so that the deeper networks that larger
    images get train as well.
    """

    name: str = "cnn"
    min_image_size: ClassVar[int] = 4

    def multiplications(self, data: ImageData) -> float:
        """Those of the convolutions, 9 for each pixel and pair of channels, and of the linear layer."""
        channels, height, width = data.shape
        total = 0
        for size in self._pooling(data):
            next_channels = 32 if total else 16
            total += 9 * channels * next_channels * height * width
            channels, height, width = next_channels, height // size, width // size
        return total + channels * height * width * data.num_classes

    def build(self, data: ImageData) -> nn.Module:
        """The convolutions, and a linear layer: images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn

        from decentral.gradients.passes.layers import MaxPool2d
        from decentral.models.layers.convolutions import he_convolution

        channels, height, width = data.shape
        layers: list[nn.Module] = []
        for size in self._pooling(data):
            next_channels = 32 if layers else 16
            layers.append(he_convolution(channels, next_channels, "fan_in"))
            if size > 1:
                layers.append(MaxPool2d(size))
            layers.append(nn.ReLU())
            channels, height, width = next_channels, height // size, width // size
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, data.num_classes))

    def _pooling(self, data: ImageData) -> list[int]:
        """By how much the image shrinks after each convolution."""
        pooling, (_, height, width) = [1, 4], data.shape
        while min(height, width) >= 16:
            pooling.insert(0, 2)
            height, width = height // 2, width // 2
        return pooling
