"""VGG-16."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from decentral.models.model import ImageModel
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import ImageData

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # channels
_SIDE, _UNITS = 7, 4096  # of what the large head looks at; in each of its layers


class Head(Enum):
    """The last layers of VGG-16."""

    auto = "auto"  # `cifar` for images below 64 pixels, else `imagenet`
    imagenet = "imagenet"  # 7 x 7 averages of each channel, then two layers of 4096 units
    cifar = "cifar"  # one average of each channel, then two layers of 512 units


@dataclass
class VGG16(ImageModel):
    """VGG-16 without normalization.

    Simonyan and Zisserman, ICLR 2015, configuration D, with torchvision's initial values: 138,357,544 parameters on
    colour images with 1000 classes and `head=imagenet`; 15,245,130 on those with 10 classes and `head=cifar`, which is
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
        """Convolutions and a head: images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn

        from decentral.models.layers.vgg import convolutions, large_head, small_head

        channels, height, width = data.shape
        layers, last = convolutions(channels, _STAGES), _STAGES[-1][-1]
        small = self.head is Head.cifar or (self.head is Head.auto and min(height, width) < 64)
        if small:
            head = small_head(last, data.num_classes, self.dropout)
        else:
            head = large_head(last * _SIDE**2, _UNITS, data.num_classes, self.dropout)
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1 if small else _SIDE), nn.Flatten(), *head)
