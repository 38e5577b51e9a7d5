"""MobileNetV2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.models.mobile import MobileNetwork

if TYPE_CHECKING:
    from torch import nn


@dataclass
class MobileNetV2(MobileNetwork):
    """MobileNetV2 with batch normalization, width 1.

    Sandler et al., CVPR 2018 (arXiv:1801.04381), as in torchvision: 3,504,872 parameters on colour images with 1000
    classes, and dropout of 0.2 before the last layer. Running statistics are buffers, see `ResNet50`.
    """

    name: str = "mobilenet_v2"

    def network(self, num_classes: int) -> nn.Module:
        """See `MobileNetwork.network`."""
        from torchvision.models import mobilenet_v2

        return mobilenet_v2(weights=None, num_classes=num_classes)
