"""Policies: an actor and a critic on one body, built from a description of observations and actions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, ClassVar

from decentral.data.dataset import DataDescription
from decentral.environments.environment import EnvironmentDescription
from decentral.errors import ConfigError
from decentral.models.model import Model
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn

    from decentral.environments.environment import EnvironmentDescription


class Policy(Model):
    """An architecture with [..., num_outputs] for observations: the value, then the parameters of the action's
    distribution.

    These are a logit for each discrete action, or the mean and the log standard deviation of each component of a
    continuous action. Weights start orthogonal with gain sqrt(2), those of the actions with gain 0.01 and that of the
    value with 1, biases and logarithms at 0 (Huang et al., The 37 Implementation Details of PPO, ICLR Blog 2022, items
    2 and 16).
    """

    takes: ClassVar[type[DataDescription]] = EnvironmentDescription
    remembers: ClassVar[bool] = False
    """True if it has a memory of its episode, see `layers.policies.Recurrent`."""

    def head(self, width: int, data: EnvironmentDescription) -> list[nn.Module]:
        """Return the last layers, on `width` features."""
        from decentral.plugins.rl.networks import WithLogStd, output_layer

        layers: list[nn.Module] = [output_layer(width, data.num_actions)]
        return [*layers, WithLogStd(data.num_actions)] if data.continuous else layers


@dataclass
class PolicyMLP(Policy):
    """Fully connected layers with tanh between them, for actor and critic together: for observations of any shape.

    `hidden` holds the widths of the hidden layers.

    Raises:
        ConfigError: there is none, or a width is below 1.
    """

    name: str = "policy_mlp"
    hidden: list[int] = setting([64, 64], at_least=1)

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ConfigError("model.hidden=[] is empty: give widths >= 1, such as [64, 64].")

    def multiplications(self, data: EnvironmentDescription) -> float:
        """Return one multiplication for each weight."""
        widths = [prod(data.shape), *self.hidden, data.num_outputs]
        return sum(before * after for before, after in pairwise(widths))

    def build(self, data: EnvironmentDescription) -> nn.Module:
        """Return linear layers: observations [B, *shape] -> [B, num_outputs]."""
        from torch import nn

        from decentral.plugins.rl.networks import orthogonal

        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise([prod(data.shape), *self.hidden]):
            layers += [orthogonal(nn.Linear(before, after)), nn.Tanh()]
        return nn.Sequential(*layers, *self.head(self.hidden[-1], data))


@dataclass
class PolicyCNN(Policy):
    """Two 3x3 convolutions with ReLU and a fully connected layer, for actor and critic together: for images.

    Images of 16 pixels or more are halved before that, as often as it takes, by a 3x3 convolution with ReLU and 2x2
    max pooling.

    channels   output channels of each convolution
    width      width of the fully connected layer
    """

    name: str = "policy_cnn"
    channels: int = setting(16, at_least=1)
    width: int = setting(64, at_least=1)

    def check(self, data: DataDescription) -> None:
        """Raise a `ConfigError` if the observations are not images."""
        super().check(data)
        assert isinstance(data, EnvironmentDescription)
        if len(data.shape) != 3:
            raise ConfigError(
                f"model=policy_cnn needs images, but observations are {list(data.shape)}: use model=policy_mlp or "
                "policy_lstm."
            )

    def multiplications(self, data: EnvironmentDescription) -> float:
        """Return the multiplications of the convolutions, 9 per pixel and channel pair, and of the linear layers."""
        channels, height, width = data.shape
        total = 0
        for halved in self._halved(data):
            total += 9 * channels * self.channels * height * width
            channels, height, width = self.channels, height // (1 + halved), width // (1 + halved)
        return total + (channels * height * width + data.num_outputs) * self.width

    def build(self, data: EnvironmentDescription) -> nn.Module:
        """Return convolutions and linear layers: observations [B, C, H, W] -> [B, num_outputs]."""
        from torch import nn

        from decentral.gradients.passes.layers import MaxPool2d
        from decentral.plugins.rl.networks import orthogonal

        channels, height, width = data.shape
        layers: list[nn.Module] = []
        for halved in self._halved(data):
            layers += [orthogonal(nn.Conv2d(channels, self.channels, 3, padding=1)), nn.ReLU()]
            layers += [MaxPool2d(2)] if halved else []
            channels, height, width = self.channels, height // (1 + halved), width // (1 + halved)
        layers += [nn.Flatten(), orthogonal(nn.Linear(channels * height * width, self.width)), nn.ReLU()]
        return nn.Sequential(*layers, *self.head(self.width, data))

    def _halved(self, data: EnvironmentDescription) -> list[bool]:
        """Return, for each convolution, whether pooling follows it."""
        _, height, width = data.shape
        halved = [False, False]
        while min(height, width) >= 16:
            halved.insert(0, True)
            height, width = height // 2, width // 2
        return halved


@dataclass
class PolicyLSTM(Policy):
    """A fully connected layer with tanh and an LSTM on it, for actor and critic together: for all observations.

    It has a memory of its episode. It is trained on whole pieces of episodes, as long as a rollout, each from the
    memory at its beginning.

    width   width of the layer, and of the LSTM
    """

    name: str = "policy_lstm"
    width: int = setting(64, at_least=1)
    remembers: ClassVar[bool] = True

    def multiplications(self, data: EnvironmentDescription) -> float:
        """Return one multiplication for each weight."""
        return (prod(data.shape) + 8 * self.width + data.num_outputs) * self.width

    def build(self, data: EnvironmentDescription) -> nn.Module:
        """Return the network, see `layers.policies.Recurrent`."""
        from decentral.plugins.rl.networks import Recurrent

        return Recurrent(prod(data.shape), self.width, self.head(self.width, data))
