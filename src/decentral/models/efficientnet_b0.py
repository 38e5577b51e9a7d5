"""EfficientNet-B0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.models.mobile import MobileNetwork

if TYPE_CHECKING:
    from torch import nn


@dataclass
class EfficientNetB0(MobileNetwork):
    """EfficientNet-B0 with batch normalization.

    Tan and Le, ICML 2019 (arXiv:1905.11946), as in torchvision: 5,288,548 parameters on colour images with 1000
    classes. In training, blocks are left out at random for single images (with a probability that grows up to nearly
    0.2 towards the end), and there is dropout of 0.2 before the last layer. Running statistics are buffers, see
    `ResNet50`.
    """

    name: str = "efficientnet_b0"

    def network(self, num_classes: int) -> nn.Module:
        """See `MobileNetwork.network`."""
        from torchvision.models import efficientnet_b0

        return efficientnet_b0(weights=None, num_classes=num_classes)
