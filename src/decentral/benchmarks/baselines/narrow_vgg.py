"""A model between the tiny and the large ones, for measuring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.models.model import ImageModel

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import ImageData

_STAGES = ((1,), (2,), (4, 4), (8, 8), (8, 8))  # channels, in units of the width; 2x2 max pooling ends a stage


@dataclass
class NarrowVGG(ImageModel):
    """The convolutions of VGG-11 with fewer channels, and one linear layer.

    903,010 parameters on 3 x 32 x 32 images with 10 classes. It computes as much for
    each parameter as VGG-11 does, where the registry has only models that compute less.
    """

    name: str = "narrow_vgg"
    width: int = 20
    min_image_size: ClassVar[int] = 32

    def build(self, data: ImageData) -> nn.Module:
        """Convolutions and a linear layer: images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn

        channels, height, width = data.shape
        layers: list[nn.Module] = []
        for stage in _STAGES:
            for factor in stage:
                layers += [nn.Conv2d(channels, factor * self.width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = factor * self.width
            layers.append(nn.MaxPool2d(2))
        inputs = channels * (height // 2 ** len(_STAGES)) * (width // 2 ** len(_STAGES))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, data.num_classes))
