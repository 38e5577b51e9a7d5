"""Networks for mobile devices: MobileNetV2 and EfficientNet-B0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.models.model import ImageModel

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import ImageData


class MobileNetwork(ImageModel):
    """A network of inverted residual blocks: torchvision's of the same name.

    It halves the images five times. Of images below 64 pixels the first convolution, the first of the five, keeps the
    size.
    """

    min_image_size: ClassVar[int] = 8

    def build(self, data: ImageData) -> nn.Module:
        """The network with a stem for these images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn
        from torchvision import models

        channels, height, width = data.shape
        network: Any = getattr(models, self.name)(weights=None, num_classes=data.num_classes)
        stem = network.features[0]
        first, stride = stem[0], 1 if min(height, width) < 64 else 2
        if (channels, (stride, stride)) != (first.in_channels, first.stride):
            stem[0] = nn.Conv2d(channels, first.out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
            nn.init.kaiming_normal_(stem[0].weight, mode="fan_out")
        return network  # type: ignore[no-any-return]


@dataclass
class MobileNetV2(MobileNetwork):
    """MobileNetV2 with batch normalization, width 1.

    Sandler et al., CVPR 2018 (arXiv:1801.04381), as in torchvision: 3,504,872 parameters on colour images with 1000
    classes, and dropout of 0.2 before the last layer. Running statistics are buffers, see `ResNet50`.
    """

    name: str = "mobilenet_v2"


@dataclass
class EfficientNetB0(MobileNetwork):
    """EfficientNet-B0 with batch normalization.

    Tan and Le, ICML 2019 (arXiv:1905.11946), as in torchvision: 5,288,548 parameters on colour images with 1000
    classes. In training, blocks are left out at random for single images (with a probability that grows up to nearly
    0.2 towards the end), and there is dropout of 0.2 before the last layer. Running statistics are buffers, see
    `ResNet50`.
    """

    name: str = "efficientnet_b0"
