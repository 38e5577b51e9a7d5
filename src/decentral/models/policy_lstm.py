"""A policy that remembers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from decentral.models.policy import Policy
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn

    from decentral.environments.environment import EnvironmentDescription


@dataclass
class PolicyLSTM(Policy):
    """A fully connected layer with tanh and an LSTM on it, for actor and critic together: for all observations.

    It remembers what it saw since its episode began. It is trained on whole pieces of episodes, as long as a rollout,
    each from the memory that it had where the piece begins.

    width   of the layer, and of the LSTM
    """

    name: str = "policy_lstm"
    width: int = setting(64, at_least=1)
    remembers: ClassVar[bool] = True

    def multiplications(self, data: EnvironmentDescription) -> float:
        """One for each weight."""
        return (prod(data.shape) + 8 * self.width + data.num_outputs) * self.width

    def build(self, data: EnvironmentDescription) -> nn.Module:
        """See `layers.policies.Recurrent`."""
        from decentral.models.layers.policies import Recurrent

        return Recurrent(prod(data.shape), self.width, self.head(self.width, data))
