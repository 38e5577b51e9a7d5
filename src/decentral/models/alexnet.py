"""AlexNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.models.model import ImageModel
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import ImageData


@dataclass
class AlexNet(ImageModel):
    """AlexNet in the version with one tower.

    Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014 (arXiv:1404.5997), as in
    torchvision, without normalization: 61,100,840 parameters on colour images with 1000 classes.

    `dropout` is a probability.

    Raises:
        ConfigError: `dropout` is not in [0, 1).
    """

    name: str = "alexnet"
    dropout: float = setting(0.5, at_least=0, below=1)
    min_image_size: ClassVar[int] = 64

    def build(self, data: ImageData) -> nn.Module:
        """Images [B, C, H, W] -> logits [B, num_classes]."""
        from torch import nn
        from torchvision.models import alexnet

        network = alexnet(weights=None, num_classes=data.num_classes, dropout=self.dropout)
        if data.shape[0] != 3:
            network.features[0] = nn.Conv2d(data.shape[0], 64, kernel_size=11, stride=4, padding=2)
        return network
