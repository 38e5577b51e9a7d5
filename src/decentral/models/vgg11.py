"""VGG-11 for 32 x 32 images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.models.model import ImageModel
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import ImageData

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # channels; 2x2 max pooling ends a stage


@dataclass
class VGG11(ImageModel):
    """VGG-11 without normalization, as trained on CIFAR-10 in the RelaySum paper.

    Simonyan and Zisserman, ICLR 2015, configuration A; the variant of Vogels et al., NeurIPS 2021 (arXiv:2110.04175),
    appendix B.1 and the authors' code: 3x3 convolutions with ReLU, then dropout, 512 units, ReLU, dropout, 512 units,
    ReLU and the classes.
    9,750,922 parameters on 3 x 32 x 32 images with 10 classes.

    Convolutions start at N(0, 2 / (k * k * out_channels)) with bias 0, linear layers at torch's default.
    `dropout` is a probability. Images of 64 pixels or more are averaged to 1 x 1 before the first linear layer.

    Raises:
        ConfigError: `dropout` is not in [0, 1).
    """

    name: str = "vgg11"
    dropout: float = setting(0.5, at_least=0, below=1)
    min_image_size: ClassVar[int] = 32

    def build(self, data: ImageData) -> nn.Module:
        """Convolutions and a head: images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn

        from decentral.models.layers.vgg import convolutions, small_head

        channels, height, width = data.shape
        layers = convolutions(channels, _STAGES)
        if max(height, width) >= 2 * 2 ** len(_STAGES):
            layers.append(nn.AdaptiveAvgPool2d(1))
        return nn.Sequential(*layers, nn.Flatten(), *small_head(_STAGES[-1][-1], data.num_classes, self.dropout))
