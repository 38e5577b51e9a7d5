"""ResNet-50."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.models.residual import ResidualNetwork, Stem

if TYPE_CHECKING:
    from torchvision.models import ResNet


@dataclass
class ResNet50(ResidualNetwork):
    """ResNet-50 with batch normalization.

    He et al., CVPR 2016 (arXiv:1512.03385), table 1, as in torchvision: bottleneck blocks,
    25,557,032 parameters on colour images with 1000 classes and `stem=imagenet`. Blocks that halve the image do so in
    their 3x3 convolution, not in the first 1x1 as in the paper ("ResNet v1.5").
    `stem` is described in `Stem`. Running statistics are buffers, not parameters: no algorithm averages them, see
    `statistics.recompute_batch_statistics`.
    """

    name: str = "resnet50"
    stem: Stem = Stem.auto

    def network(self, num_classes: int) -> ResNet:
        """See `ResidualNetwork.network`."""
        from torchvision.models import resnet50

        return resnet50(weights=None, num_classes=num_classes)
