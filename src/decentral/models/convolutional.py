"""Small networks and plain convolutional ones: MLP, CNN, VGG-11, VGG-16 and AlexNet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, ClassVar

from decentral.models.model import ImageModel
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.dataset import ImageData


@dataclass
class MLP(ImageModel):
    """Fully connected layers with ReLU between them (multi-layer perceptron): fast, for images of any size.

    `hidden` holds the widths of the hidden layers. Without any (`model.hidden=[]`) this is multinomial logistic
    regression, which is convex.

    Raises:
        ConfigError: a width is below 1.
    """

    name: str = "mlp"
    hidden: list[int] = setting([64, 64], at_least=1)

    def multiplications(self, data: ImageData) -> float:
        """Return one multiplication for each weight."""
        widths = [prod(data.shape), *self.hidden, data.num_classes]
        return sum(before * after for before, after in pairwise(widths))

    def build(self, data: ImageData) -> nn.Module:
        """Build linear layers: images [B, C, H, W] -> logits [B, num_classes]."""
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

    It ends with two 3x3 convolutions with ReLU, 4x4 max pooling and one linear layer. Larger images, of 16 pixels or
    more, are first halved as often as needed by a 3x3 convolution, 2x2 max pooling and ReLU. The first convolution has
    `width` channels, the others twice as many. On 1 x 8 x 8 digits with 10 classes and the default width that is two
    convolutions and 6,090 parameters.

    Pooling comes before ReLU, which then has fewer pixels. This saves a tenth of the time of a pass with 32 x 32
    pixels. Values and gradients are those of ReLU before pooling, bit for bit, since ReLU is monotonic.

    Convolutions start at N(0, 2 / fan_in) with bias 0 (He et al., ICCV 2015), so that the deeper networks for larger
    images train, too.

    Raises:
        ConfigError: `width` is below 1.
    """

    name: str = "cnn"
    width: int = setting(16, at_least=1, older=16)
    min_image_size: ClassVar[int] = 4

    def multiplications(self, data: ImageData) -> float:
        """Return the multiplications of the convolutions, 9 per pixel and channel pair, and of the linear layer."""
        channels, height, width = data.shape
        total = 0
        for size in self._pooling(data):
            next_channels = 2 * self.width if total else self.width
            total += 9 * channels * next_channels * height * width
            channels, height, width = next_channels, height // size, width // size
        return total + channels * height * width * data.num_classes

    def build(self, data: ImageData) -> nn.Module:
        """Build the convolutions, and a linear layer: images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn

        from decentral.models.layers.convolutions import MaxPool2d, he_convolution

        channels, height, width = data.shape
        layers: list[nn.Module] = []
        for size in self._pooling(data):
            next_channels = 2 * self.width if layers else self.width
            layers.append(he_convolution(channels, next_channels, "fan_in"))
            if size > 1:
                layers.append(MaxPool2d(size))
            layers.append(nn.ReLU())
            channels, height, width = next_channels, height // size, width // size
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, data.num_classes))

    def _pooling(self, data: ImageData) -> list[int]:
        """Return the factors by which the image shrinks after each convolution."""
        pooling, (_, height, width) = [1, 4], data.shape
        while min(height, width) >= 16:
            pooling.insert(0, 2)
            height, width = height // 2, width // 2
        return pooling


_STAGES_11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # channels; 2x2 max pooling ends a stage


@dataclass
class VGG11(ImageModel):
    """VGG-11 without normalization: the CIFAR-10 model of the RelaySum paper (9.8 million parameters).

    Simonyan and Zisserman, ICLR 2015, configuration A; the variant of Vogels et al., NeurIPS 2021 (arXiv:2110.04175),
    appendix B.1 and the authors' code: 3x3 convolutions with ReLU, then dropout, 512 units, ReLU, dropout, 512 units,
    ReLU and the classes.
    9,750,922 parameters on 3 x 32 x 32 images with 10 classes.

    Convolutions start at N(0, 2 / (k * k * out_channels)) with bias 0, linear layers at torch's default.
    `dropout` is a probability. Images of 64 pixels or more are averaged to 1 x 1 before the first linear layer.

    Raises:
        ConfigError: `dropout` is not in [0, 1).
    """

    name: str = "vgg11"
    dropout: float = setting(0.5, at_least=0, below=1)
    min_image_size: ClassVar[int] = 32

    def build(self, data: ImageData) -> nn.Module:
        """Build convolutions and a head: images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn

        from decentral.models.layers.convolutions import convolutions, small_head

        channels, height, width = data.shape
        layers = convolutions(channels, _STAGES_11)
        if max(height, width) >= 2 * 2 ** len(_STAGES_11):
            layers.append(nn.AdaptiveAvgPool2d(1))
        return nn.Sequential(*layers, nn.Flatten(), *small_head(_STAGES_11[-1][-1], data.num_classes, self.dropout))


_STAGES_16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # channels
_SIDE, _UNITS = 7, 4096  # of what the large head looks at; in each of its layers


class Head(Enum):
    """The last layers of VGG-16."""

    auto = "auto"  # `cifar` for images below 64 pixels, else `imagenet`
    imagenet = "imagenet"  # 7 x 7 averages of each channel, then two layers of 4096 units
    cifar = "cifar"  # one average of each channel, then two layers of 512 units


@dataclass
class VGG16(ImageModel):
    """VGG-16 without normalization (138.4 million parameters); the last layers suit small images too.

    Simonyan and Zisserman, ICLR 2015, configuration D, with torchvision's initial values: 138,357,544 parameters on
    color images with 1000 classes and `head=imagenet`; 15,245,130 on those with 10 classes and `head=cifar`, which is
    the head of `vgg11`.

    `dropout` is a probability.

    Raises:
        ConfigError: `dropout` is not in [0, 1).
    """

    name: str = "vgg16"
    head: Head = Head.auto
    dropout: float = setting(0.5, at_least=0, below=1)
    min_image_size: ClassVar[int] = 32

    def build(self, data: ImageData) -> nn.Module:
        """Build convolutions and a head: images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn

        from decentral.models.layers.convolutions import convolutions, large_head, small_head

        channels, height, width = data.shape
        layers, last = convolutions(channels, _STAGES_16), _STAGES_16[-1][-1]
        small = self.head is Head.cifar or (self.head is Head.auto and min(height, width) < 64)
        if small:
            head = small_head(last, data.num_classes, self.dropout)
        else:
            head = large_head(last * _SIDE**2, _UNITS, data.num_classes, self.dropout)
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1 if small else _SIDE), nn.Flatten(), *head)


@dataclass
class AlexNet(ImageModel):
    """AlexNet without normalization (61.1 million parameters), for images of at least 64 x 64 pixels.

    Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014 (arXiv:1404.5997), as in
    torchvision, without normalization: 61,100,840 parameters on color images with 1000 classes.

    `dropout` is a probability.

    Raises:
        ConfigError: `dropout` is not in [0, 1).
    """

    name: str = "alexnet"
    dropout: float = setting(0.5, at_least=0, below=1)
    min_image_size: ClassVar[int] = 64

    def build(self, data: ImageData) -> nn.Module:
        """Build the network: images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn
        from torchvision.models import alexnet

        network = alexnet(weights=None, num_classes=data.num_classes, dropout=self.dropout)
        if data.shape[0] != 3:
            network.features[0] = nn.Conv2d(data.shape[0], 64, kernel_size=11, stride=4, padding=2)
        return network
