"""A policy of fully connected layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from decentral.errors import ConfigError
from decentral.models.policy import Policy

if TYPE_CHECKING:
    from torch import nn

    from decentral.environments.environment import EnvironmentDescription


@dataclass
class PolicyMLP(Policy):
    """Fully connected layers with tanh between them, for actor and critic together: for observations of any shape.

    `hidden` holds the widths of the hidden layers.

    Raises:
        ConfigError: there is none, or a width is below 1.
    """

    name: str = "policy_mlp"
    hidden: list[int] = field(default_factory=lambda: [64, 64])

    def __post_init__(self) -> None:
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise ConfigError(f"model.hidden={list(self.hidden)} must hold widths of at least 1, like [64, 64].")

    def multiplications(self, data: EnvironmentDescription) -> float:
        """One for each weight."""
        widths = [prod(data.shape), *self.hidden, data.num_outputs]
        return sum(before * after for before, after in pairwise(widths))

    def build(self, data: EnvironmentDescription) -> nn.Module:
        """Linear layers: observations [B, *shape] -> [B, num_outputs]."""
        from torch import nn

        from decentral.models.layers.policies import orthogonal

        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise([prod(data.shape), *self.hidden]):
            layers += [orthogonal(nn.Linear(before, after)), nn.Tanh()]
        return nn.Sequential(*layers, *self.head(self.hidden[-1], data))
