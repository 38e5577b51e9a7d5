"""What the networks for mobile devices share: how they take images of any size and any number of channels."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.models.model import ImageModel

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import ImageData


class MobileNetwork(ImageModel):
    """A network of inverted residual blocks from torchvision.

    It halves the images five times. Of images below 64 pixels the first convolution, the first of the five, keeps the
    size.
    """

    min_image_size: ClassVar[int] = 8

    @abstractmethod
    def network(self, num_classes: int) -> nn.Module:
        """The architecture, for colour images."""

    def build(self, data: ImageData) -> nn.Module:
        """The network with a stem for these images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn

        channels, height, width = data.shape
        network: Any = self.network(data.num_classes)
        stem = network.features[0]
        first, stride = stem[0], 1 if min(height, width) < 64 else 2
        if (channels, (stride, stride)) != (first.in_channels, first.stride):
            stem[0] = nn.Conv2d(channels, first.out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
            nn.init.kaiming_normal_(stem[0].weight, mode="fan_out")
        built: nn.Module = network
        return built
