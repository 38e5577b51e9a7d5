"""What policies share: an actor and a critic on one body, built from a description of observations and actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from decentral.data.description import DataDescription
from decentral.environments.environment import EnvironmentDescription
from decentral.models.model import Model

if TYPE_CHECKING:
    from torch import nn


class Policy(Model):
    """An architecture that gives [..., num_outputs] for observations: the value, then what is known of the action.

    That is a logit for each action there is to choose from, or the mean and the logarithm of the standard deviation of
    each number of a continuous one. Weights start orthogonal with gain sqrt(2), those of the actions with gain 0.01 and
    that of the value with 1, biases and logarithms at 0 (Huang et al., The 37 Implementation Details of PPO, ICLR Blog
    2022, items 2 and 16).
    """

    takes: ClassVar[type[DataDescription]] = EnvironmentDescription
    remembers: ClassVar[bool] = False
    """Whether it has a memory of its episode, see `layers.policies.Recurrent`."""

    def head(self, width: int, data: EnvironmentDescription) -> list[nn.Module]:
        """The last layers, on `width` features."""
        from decentral.models.layers.policies import WithLogStd, output_layer

        layers: list[nn.Module] = [output_layer(width, data.num_actions)]
        return [*layers, WithLogStd(data.num_actions)] if data.continuous else layers
