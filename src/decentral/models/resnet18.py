"""ResNet-18."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.models.residual import ResidualNetwork, Stem

if TYPE_CHECKING:
    from torchvision.models import ResNet


@dataclass
class ResNet18(ResidualNetwork):
    """ResNet-18 with batch normalization.

    He et al., CVPR 2016 (arXiv:1512.03385), table 1, as in torchvision: basic blocks,
    11,689,512 parameters on colour images with 1000 classes and `stem=imagenet`.
    `stem` is described in `Stem`. Running statistics are buffers, not parameters: no algorithm averages them, see
    `statistics.recompute_batch_statistics`.
    """

    name: str = "resnet18"
    stem: Stem = Stem.auto

    def network(self, num_classes: int) -> ResNet:
        """See `ResidualNetwork.network`."""
        from torchvision.models import resnet18

        return resnet18(weights=None, num_classes=num_classes)
