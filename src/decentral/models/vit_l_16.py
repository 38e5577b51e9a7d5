"""ViT-L/16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.data.description import DataDescription, ImageData
from decentral.errors import ConfigError
from decentral.models.model import ImageModel
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn

_PATCH = 16


@dataclass
class ViTL16(ImageModel):
    """The large vision transformer with patches of 16 x 16 pixels: 24 layers, 16 heads, width 1024.

    Dosovitskiy et al., ICLR 2021 (arXiv:2010.11929), table 1, as in torchvision: 304,326,632 parameters on colour
    images of 224 x 224 with 1000 classes. Images are squares whose side is a multiple of 16.

    `dropout` is a probability.

    Raises:
        ConfigError: `dropout` is not in [0, 1).
    """

    name: str = "vit_l_16"
    dropout: float = setting(0.0, at_least=0, below=1)
    min_image_size: ClassVar[int] = 64

    def check(self, data: DataDescription) -> None:
        """Raise a `ConfigError` if these are no images, too small ones, or cannot be cut in patches."""
        super().check(data)
        assert isinstance(data, ImageData)
        _, height, width = data.shape
        if height != width or height % _PATCH:
            raise ConfigError(
                f"model={self.name} cuts images in squares of {_PATCH} x {_PATCH} pixels, but those of this data= are "
                f"{height} x {width}: use square ones with a multiple of {_PATCH}, such as data.image_size=224."
            )

    def build(self, data: ImageData) -> nn.Module:
        """Images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn
        from torchvision.models import vit_l_16

        channels, side, _ = data.shape
        network = vit_l_16(weights=None, num_classes=data.num_classes, image_size=side, dropout=self.dropout)
        if channels != 3:
            network.conv_proj = nn.Conv2d(channels, network.hidden_dim, kernel_size=_PATCH, stride=_PATCH)
        return network
