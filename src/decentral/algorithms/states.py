"""What several algorithms remember between steps, declared once: models alone, with corrections, with a momentum."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Rows
    from decentral.network.network import Network


class Start(Enum):
    """What the neighbours know of a worker's model before step 0: nothing (zero), or the model that all share."""

    initial = "initial"
    zero = "zero"

    def of(self, x: Tensor) -> Tensor:
        """The rows [k, P] that they know, for models x [k, P]; new memory."""
        return x.clone() if self is Start.initial else x.new_zeros(x.shape)


class OnlyModels(Algorithm):
    """An algorithm that remembers the models and what the local optimizer does."""

    own_starts: ClassVar[bool] = True

    class State(NamedTuple):
        """Models and the local optimizer."""

        x: Rows  # [k, P]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """The models x [k, P], and the local optimizer before step 0."""
        return self.State(x, self.local.init(x))


class WithCorrections(Algorithm):
    """An algorithm that remembers a correction c_i for each worker, which is added to its model before averaging."""

    own_starts: ClassVar[bool] = True

    class State(NamedTuple):
        """Models, corrections and the local optimizer."""

        x: Rows  # [k, P]
        c: Rows  # [k, P]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """The models x [k, P], c^0 = 0, and the local optimizer before step 0."""
        return self.State(x, x.new_zeros(x.shape), self.local.init(x))

    def corrections(self, s: State) -> Tensor:
        """The c_i [k, P]."""
        return s.c


class WithMomentum(Algorithm):
    """An algorithm that has a momentum m_i for each worker, apart from what the local optimizer has."""

    own_starts: ClassVar[bool] = True

    class State(NamedTuple):
        """Models, momentum and the local optimizer."""

        x: Rows  # [k, P]
        m: Rows  # [k, P]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """The models x [k, P], m^0 = 0, and the local optimizer before step 0."""
        return self.State(x, x.new_zeros(x.shape), self.local.init(x))


def beside_zeros(x: Tensor) -> Tensor:
    """x [k, P] and as many zeros, side by side: [k, 2, P], so that two vectors of a worker travel as one message."""
    pair = x.new_zeros(len(x), 2, x.shape[-1])
    pair[:, 0] = x
    return pair
