"""States that several algorithms share: models alone, with corrections, or with a momentum."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from decentral.algorithms.algorithm import Algorithm, Parts
from decentral.algorithms.features import Feature

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Rows
    from decentral.network.network import Network


class Start(Enum):
    """The neighbors' estimate of a worker's model before step 0: zero, or the common initial model."""

    initial = "initial"
    zero = "zero"

    def of(self, x: Tensor) -> Tensor:
        """Return their estimates [k, P] of the models x [k, P], in new memory."""
        return x.clone() if self is Start.initial else x.new_zeros(x.shape)


class OnlyModels(Algorithm):
    """An algorithm whose state is the models and the local optimizer."""

    supports = Algorithm.supports | {Feature.own_starts}

    class State(NamedTuple):
        """Models and the local optimizer."""

        x: Rows  # [k, P]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P] and the local optimizer before step 0."""
        return self.State(x=x, opt=self.local.init(x))


class WithCorrections(Algorithm):
    """An algorithm that keeps a correction c_i for each worker and adds it to the model before averaging."""

    supports = Algorithm.supports | {Feature.own_starts, Feature.corrections}

    class State(NamedTuple):
        """Models, corrections and the local optimizer."""

        x: Rows  # [k, P]
        c: Rows  # [k, P]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], c^0 = 0, and the local optimizer before step 0."""
        return self.State(x=x, c=x.new_zeros(x.shape), opt=self.local.init(x))

    def parts(self, s: State) -> Parts:
        """Return the x_i and the c_i [k, P]."""
        return Parts((self.models(s),), corrections=s.c)


class WithMomentum(Algorithm):
    """An algorithm that keeps a momentum m_i for each worker, separate from the local optimizer's."""

    supports = Algorithm.supports | {Feature.own_starts}

    class State(NamedTuple):
        """Models, momentum and the local optimizer."""

        x: Rows  # [k, P]
        m: Rows  # [k, P]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], m^0 = 0, and the local optimizer before step 0."""
        return self.State(x=x, m=x.new_zeros(x.shape), opt=self.local.init(x))


def beside_zeros(x: Tensor) -> Tensor:
    """Return x [k, P] beside zeros as [k, 2, P], so that a worker sends two vectors as one message."""
    pair = x.new_zeros(len(x), 2, x.shape[-1])
    pair[:, 0] = x
    return pair
