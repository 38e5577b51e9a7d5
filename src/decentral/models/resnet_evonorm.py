"""ResNet-18 with EvoNorm-S0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.models.residual import ResidualNetwork, Stem

if TYPE_CHECKING:
    from torchvision.models import ResNet


@dataclass
class ResNetEvoNorm(ResidualNetwork):
    """ResNet-18 with EvoNorm-S0, as trained on ImageNet in the RelaySum paper.

    Vogels et al., NeurIPS 2021 (arXiv:2110.04175), table 3 and appendix B.2, as in the authors' code: EvoNorm-S0
    (32 groups, see `layers.evonorm.EvoNormS0`) replaces each batch normalization that is followed directly by ReLU: the
    one of the stem and the first of each block. The second of each block and those of the shortcuts stay, and take the
    statistics of the current batch in evaluation too: there is nothing to average but parameters, yet a prediction
    depends on the other images of its batch. 11,691,496 parameters on colour images with 1000 classes and
    `stem=imagenet`: ResNet-18's and one v for each of the 1,984 channels that EvoNorm acts on.

    The paper says ResNet-20; the authors' code, and the results that they published with it, have ResNet-18.
    Their code keeps v = 1, as `model.learn_v=false` does (11,689,512 parameters); Liu et al. learn v, the default here.
    It also has the unbiased variance, not the biased one: below 0.1 % of the standard deviation at 224 pixels.
    `stem` is described in `Stem`; the paper has 224-pixel images and `imagenet`.
    """

    name: str = "resnet_evonorm"
    stem: Stem = Stem.auto
    learn_v: bool = True

    def network(self, num_classes: int) -> ResNet:
        """See `ResidualNetwork.network`."""
        from functools import partial

        from torch import nn
        from torchvision.models import ResNet

        from decentral.models.layers.evonorm import EvoNormBlock, EvoNormS0, FixedSlopeEvoNormBlock

        network = ResNet(
            EvoNormBlock if self.learn_v else FixedSlopeEvoNormBlock,
            [2, 2, 2, 2],
            num_classes=num_classes,
            norm_layer=partial(nn.BatchNorm2d, track_running_stats=False),
        )
        network.bn1 = EvoNormS0(64, learn_v=self.learn_v)
        network.relu = nn.Identity()
        return network
