"""Residual networks: ResNet-18, ResNet-50, and ResNet-18 with EvoNorm-S0."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from decentral.data.description import DataDescription, ImageData
from decentral.errors import ConfigError
from decentral.models.model import ImageModel

if TYPE_CHECKING:
    from torch import nn
    from torchvision.models import ResNet


_IMAGENET_SIDE = 32  # images for the `imagenet` stem


class Stem(Enum):
    """The first layers of a residual network."""

    auto = "auto"  # `cifar` for images below 64 pixels, else `imagenet`
    imagenet = "imagenet"  # 7x7 convolution and 3x3 max pooling, both with stride 2
    cifar = "cifar"  # 3x3 convolution with stride 1, no pooling


class ResidualNetwork(ImageModel):
    """A residual network of torchvision, whose stem suits the images.

    The stages after the stem halve the images three times, the `imagenet` stem twice more.
    """

    name: str
    stem: Stem
    min_image_size: ClassVar[int] = 8

    def network(self, num_classes: int) -> ResNet:
        """The architecture, for colour images and with the `imagenet` stem: torchvision's of this name."""
        from torchvision import models

        return getattr(models, self.name)(weights=None, num_classes=num_classes)  # type: ignore[no-any-return]

    def check(self, data: DataDescription) -> None:
        """Raise a `ConfigError` if these are no images, or too small for this model or for its stem."""
        super().check(data)
        assert isinstance(data, ImageData)
        _, height, width = data.shape
        if self.stem is Stem.imagenet and min(height, width) < _IMAGENET_SIDE:
            raise ConfigError(
                f"model={self.name} with model.stem=imagenet needs images of at least {_IMAGENET_SIDE} x "
                f"{_IMAGENET_SIDE} pixels, but those of this data= are {height} x {width}: choose model.stem=cifar or "
                f"larger images (other data=, or data.image_size={_IMAGENET_SIDE} where data= has it)."
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
