"""D-PSGD."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.compression.rows import AcceptedCompression
from decentral.optim.rows import add
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, RevisionOf, Rows
    from decentral.network.network import Network


class Mode(Enum):
    """Adapt then combine, or adapt while combining."""

    atc = "atc"
    awc = "awc"


@dataclass
class DPSGD(Algorithm):
    """Decentralized parallel SGD: one round of gossip averaging with the neighbors per step.

        mode=atc    x_i <- sum_j W_ij (x_j + u_j)           adapt then combine, the RelaySGD authors' "DP-SGD"
        mode=awc    x_i <- y_i + u_i, y_i = sum_j W_ij x_j  adapt while combining: messages overlap the gradient

    Lian et al., NeurIPS 2017 (arXiv:1705.09056), Algorithm 1 is awc. In awc the gradient is taken at x_i. Weight decay,
    absent from the paper, acts on y_i, as in BlueFog, whose optimizer steps from the averaged model. W is doubly
    stochastic, static or time-varying.
    Lost messages: the receiver rescales its remaining weights to their old sum.

    With `compress=` (bf16, int8, sign) workers send rounded models; in atc, on a single graph:

        x_i <- y_i + sum_j W_ij (C(y_j) - C(y_i)), y_i = x_i + u_i   which keeps the mean for any C
    """

    name: str = "dpsgd"
    mode: Mode = Mode.atc
    supports = Algorithm.supports | {Feature.own_starts, Feature.own_steps, Feature.robust_mixing}
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Models, rounding residuals, and the local optimizer."""

        x: Rows  # [k, P]
        compression_stats: Rows
        opt: Buffers

    @property
    def takes(self) -> AcceptedCompression:
        """Return the supported compressors: rounding in atc, none in awc."""
        return AcceptedCompression.rows if self.mode is Mode.atc else AcceptedCompression.nothing

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P] and the local optimizer before step 0."""
        return self.State(x, self.compressor.compression_stats(x), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient at x_i and one round of averaging."""
        return self.begin(s, oracle, net, t)()

    def begin(self, s: State, oracle: Oracle, net: Network, t: int) -> Callable[[], State]:
        """Begin a step and return a function that completes it. Messages are in flight in between: after the update in
        atc, before the gradient in awc."""
        x, compression_stats, opt = s
        if self.mode is Mode.atc:
            y, opt = self.local.adapt(x, oracle(x), opt, t)  # x_j + u_j
            mixing = self.compressor.begin_mix(y, net, t)
            return lambda: self.State(mixing(), compression_stats, opt)
        mixing = net.begin_mix(x, t)  # sum_j W_ij x_j

        def end() -> DPSGD.State:
            g = oracle(x)
            y, buffers = self.adapted(mixing(), g, opt, t)
            return self.State(y, compression_stats, buffers)

        return end

    def adapted(self, y: Tensor, g: Tensor, opt: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """Return y_i + u_i in y's memory, where awc takes the local update at y_i."""
        u, opt = self.local(g, y, opt, t)
        return add(y, u), opt

    def revision(self, of: RevisionOf) -> int:
        """Return 2 with weight decay in awc: revision 1 applied it to the x_i."""
        return 2 if of.decays and self.mode is Mode.awc else 1
