"""Networks of torchvision: residual networks, MobileNetV2, EfficientNet-B0 and ViT-L/16."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.data.dataset import DataDescription, ImageData
from decentral.errors import ConfigError
from decentral.models.model import ImageModel
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn
    from torchvision.models import ResNet

    from decentral.data.dataset import ImageData


_IMAGENET_SIDE = 32  # images for the `imagenet` stem


class Stem(Enum):
    """The first layers of a residual network."""

    auto = "auto"  # `cifar` for images below 64 pixels, else `imagenet`
    imagenet = "imagenet"  # 7x7 convolution and 3x3 max pooling, both with stride 2
    cifar = "cifar"  # 3x3 convolution with stride 1, no pooling


class ResidualNetwork(ImageModel):
    """A residual network of torchvision, with a stem that fits the images.

    The stages after the stem halve the images three times, the `imagenet` stem twice more.
    """

    name: str
    stem: Stem
    min_image_size: ClassVar[int] = 8

    def network(self, num_classes: int) -> ResNet:
        """Return the architecture for color images with the `imagenet` stem: torchvision's network of this name."""
        from torchvision import models

        return getattr(models, self.name)(weights=None, num_classes=num_classes)  # type: ignore[no-any-return]

    def check(self, data: DataDescription) -> None:
        """Raise a `ConfigError` if the data are not images, or are too small for this model or for its stem."""
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
        """Build the network with a stem for these images [B, C, H, W] -> logits [B, num_classes]."""
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
    """ResNet-18 with batch normalization (11.7 million parameters); the first layers suit small images too.

    He et al., CVPR 2016 (arXiv:1512.03385), table 1, as in torchvision: basic blocks,
    11,689,512 parameters on color images with 1000 classes and `stem=imagenet`.
    `stem` is described in `Stem`. Running statistics are buffers, not parameters: no algorithm averages them, see
    `statistics.recompute_batch_statistics`.
    """

    name: str = "resnet18"
    stem: Stem = Stem.auto


@dataclass
class ResNet50(ResidualNetwork):
    """ResNet-50 with batch normalization (25.6 million parameters); the first layers suit small images too.

    He et al., CVPR 2016 (arXiv:1512.03385), table 1, as in torchvision: bottleneck blocks,
    25,557,032 parameters on color images with 1000 classes and `stem=imagenet`. Blocks that halve the image do so in
    their 3x3 convolution, not in the first 1x1 as in the paper ("ResNet v1.5").
    `stem` is described in `Stem`. Running statistics are buffers, not parameters: no algorithm averages them, see
    `statistics.recompute_batch_statistics`.
    """

    name: str = "resnet50"
    stem: Stem = Stem.auto


@dataclass
class ResNetEvoNorm(ResidualNetwork):
    """ResNet-18 with EvoNorm-S0: the ImageNet model of the RelaySum paper (11.7 million parameters).

    Vogels et al., NeurIPS 2021 (arXiv:2110.04175), table 3 and appendix B.2, as in the authors' code: EvoNorm-S0 (32
    groups, see `layers.evonorm.EvoNormS0`) replaces each batch normalization that is followed directly by ReLU: the one
    of the stem and the first of each block. The second of each block and those of the shortcuts remain, and use the
    statistics of the current batch in evaluation, too: only parameters are averaged, but a prediction depends on the
    other images of its batch. 11,691,496 parameters on color images with 1000 classes and `stem=imagenet`: ResNet-18's
    and one v for each of the 1,984 channels that EvoNorm acts on.

    The paper says ResNet-20; the authors' code, and the results that they published with it, have ResNet-18. Their code
    keeps v = 1, as `model.learn_v=false` does (11,689,512 parameters); Liu et al. learn v, the default here. It also
    has the unbiased variance, not the biased one: below 0.1 % of the standard deviation at 224 pixels. `stem` is
    described in `Stem`; the paper uses 224-pixel images and `imagenet`.
    """

    name: str = "resnet_evonorm"
    stem: Stem = Stem.auto
    learn_v: bool = True

    def network(self, num_classes: int) -> ResNet:
        """See `ResidualNetwork.network`."""
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


class MobileNetwork(ImageModel):
    """A network of inverted residual blocks: torchvision's of the same name.

    It halves the images five times. For images below 64 pixels the first convolution keeps the size, so that they are
    halved four times.
    """

    min_image_size: ClassVar[int] = 8

    def build(self, data: ImageData) -> nn.Module:
        """Build the network with a stem for these images [B, C, H, W] -> logits [B, num_classes]."""
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
    """MobileNetV2, width 1, with batch normalization (3.5 million parameters); the first layer suits small images too.

    Sandler et al., CVPR 2018 (arXiv:1801.04381), as in torchvision: 3,504,872 parameters on color images with 1000
    classes, and dropout of 0.2 before the last layer. Running statistics are buffers, see `ResNet50`.
    """

    name: str = "mobilenet_v2"


@dataclass
class EfficientNetB0(MobileNetwork):
    """EfficientNet-B0 with batch normalization (5.3 million parameters); the first layer suits small images too.

    Tan and Le, ICML 2019 (arXiv:1905.11946), as in torchvision: 5,288,548 parameters on color images with 1000
    classes. In training, blocks are left out at random for single images (with a probability that grows up to nearly
    0.2 toward the end), and there is dropout of 0.2 before the last layer. Running statistics are buffers, see
    `ResNet50`.
    """

    name: str = "efficientnet_b0"


_PATCH = 16


@dataclass
class ViTL16(ImageModel):
    """Vision transformer ViT-L/16 (304.3 million parameters), for images of 64, 80, 96, ... pixels square.

    Patches of 16 x 16 pixels, 24 layers, 16 heads, width 1024.

    Dosovitskiy et al., ICLR 2021 (arXiv:2010.11929), table 1, as in torchvision: 304,326,632 parameters on color
    images of 224 x 224 with 1000 classes. Images are squares whose side is a multiple of 16.

    `dropout` is a probability.

    Raises:
        ConfigError: `dropout` is not in [0, 1).
    """

    name: str = "vit_l_16"
    dropout: float = setting(0.0, at_least=0, below=1)
    min_image_size: ClassVar[int] = 64

    def check(self, data: DataDescription) -> None:
        """Raise a `ConfigError` if the data are not images, are too small, or cannot be cut into patches."""
        super().check(data)
        assert isinstance(data, ImageData)
        _, height, width = data.shape
        if height != width or height % _PATCH:
            raise ConfigError(
                f"model={self.name} splits images into squares of {_PATCH} x {_PATCH} pixels, but images of this "
                f"data= have {height} x {width} pixels: use square images whose side is a multiple of {_PATCH}, such "
                "as data.image_size=224."
            )

    def build(self, data: ImageData) -> nn.Module:
        """Build the network: images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn
        from torchvision.models import vit_l_16

        channels, side, _ = data.shape
        network = vit_l_16(weights=None, num_classes=data.num_classes, image_size=side, dropout=self.dropout)
        if channels != 3:
            network.conv_proj = nn.Conv2d(channels, network.hidden_dim, kernel_size=_PATCH, stride=_PATCH)
        return network
