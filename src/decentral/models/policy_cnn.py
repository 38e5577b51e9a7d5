"""A policy that begins with convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.data.description import DataDescription
from decentral.environments.environment import EnvironmentDescription
from decentral.errors import ConfigError
from decentral.models.policy import Policy
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn


@dataclass
class PolicyCNN(Policy):
    """Two 3x3 convolutions with ReLU and a fully connected layer, for actor and critic together: for images.

    Images of 16 pixels or more are halved before that, as often as it takes, by a 3x3 convolution with ReLU and 2x2
    max pooling.

    channels   of each convolution
    width      of the fully connected layer
    """

    name: str = "policy_cnn"
    channels: int = setting(16, at_least=1)
    width: int = setting(64, at_least=1)

    def check(self, data: DataDescription) -> None:
        """Raise a `ConfigError` if what is seen are no images."""
        super().check(data)
        assert isinstance(data, EnvironmentDescription)
        if len(data.shape) != 3:
            raise ConfigError(
                f"model=policy_cnn is for images, but here {list(data.shape)} is seen: use model=policy_mlp or "
                "policy_lstm."
            )

    def multiplications(self, data: EnvironmentDescription) -> float:
        """Those of the convolutions, 9 for each pixel and pair of channels, and of the linear layers."""
        channels, height, width = data.shape
        total = 0
        for halved in self._halved(data):
            total += 9 * channels * self.channels * height * width
            channels, height, width = self.channels, height // (1 + halved), width // (1 + halved)
        return total + (channels * height * width + data.num_outputs) * self.width

    def build(self, data: EnvironmentDescription) -> nn.Module:
        """Convolutions and linear layers: observations [B, C, H, W] -> [B, num_outputs]."""
        from torch import nn

        from decentral.gradients.passes.pooling import MaxPool2d
        from decentral.models.layers.policies import orthogonal

        channels, height, width = data.shape
        layers: list[nn.Module] = []
        for halved in self._halved(data):
            layers += [orthogonal(nn.Conv2d(channels, self.channels, 3, padding=1)), nn.ReLU()]
            layers += [MaxPool2d(2)] if halved else []
            channels, height, width = self.channels, height // (1 + halved), width // (1 + halved)
        layers += [nn.Flatten(), orthogonal(nn.Linear(channels * height * width, self.width)), nn.ReLU()]
        return nn.Sequential(*layers, *self.head(self.width, data))

    def _halved(self, data: EnvironmentDescription) -> list[bool]:
        """Of each convolution, whether it is followed by pooling."""
        _, height, width = data.shape
        halved = [False, False]
        while min(height, width) >= 16:
            halved.insert(0, True)
            height, width = height // 2, width // 2
        return halved
