"""What the residual networks share: how they take images of any size and any number of channels."""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from decentral.data.description import DataDescription, ImageData
from decentral.errors import ConfigError
from decentral.models.model import ImageModel

if TYPE_CHECKING:
    from torch import nn
    from torchvision.models import ResNet


class Stem(Enum):
    """The first layers of a residual network."""

    auto = "auto"  # `cifar` for images below 64 pixels, else `imagenet`
    imagenet = "imagenet"  # 7x7 convolution and 3x3 max pooling, both with stride 2
    cifar = "cifar"  # 3x3 convolution with stride 1, no pooling


class ResidualNetwork(ImageModel):
    """A residual network of torchvision, whose stem suits the images.

    The stages after the stem halve the images three times, the `imagenet` stem twice more.
    """

    stem: Stem
    min_image_size: ClassVar[int] = 8
    min_image_size_imagenet: ClassVar[int] = 32

    @abstractmethod
    def network(self, num_classes: int) -> ResNet:
        """The architecture, for colour images and with the `imagenet` stem."""

    def check(self, data: DataDescription) -> None:
        """Raise a `ConfigError` if these are no images, or too small for this model or for its stem."""
        super().check(data)
        assert isinstance(data, ImageData)
        _, height, width = data.shape
        smallest = self.min_image_size_imagenet
        if self.stem is Stem.imagenet and min(height, width) < smallest:
            raise ConfigError(
                f"model={self.name} with model.stem=imagenet needs images of at least {smallest} x {smallest} pixels, "
                f"but those of this data= are {height} x {width}: choose model.stem=cifar or larger images "
                f"(other data=, or data.image_size={smallest} where data= has it)."
            )

    def build(self, data: ImageData) -> nn.Module:
        """The network with a stem for these images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn

        channels, height, width = data.shape
        network = self.network(data.num_classes)
        first = network.conv1
        if self.stem is Stem.cifar or (self.stem is Stem.auto and min(height, width) < 64):
            network.conv1 = nn.Conv2d(channels, first.out_channels, kernel_size=3, padding=1, bias=False)
            network.maxpool = nn.Identity()
        elif channels != first.in_channels:
            network.conv1 = nn.Conv2d(channels, first.out_channels, kernel_size=7, stride=2, padding=3, bias=False)
        if network.conv1 is not first:
            nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        return network
