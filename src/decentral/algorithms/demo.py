"""DeMo: decoupled momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.compression.rows import AcceptedCompression, Address
from decentral.optim.rows import add, scale, sub
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class DeMo(Algorithm):
    """DeMo: each worker keeps its own momentum, sends its largest DCT coefficients, and subtracts them.

        D_i <- decay D_i + lr g_i            D^0 = 0, g_i at x, the same for all
        D_i <- D_i - subtract C(D_i)         C: `compress=`, by default dct_topk with its chunk and k
        q    = the mean of the C(D_j): of each coefficient over the workers that sent it, 0 if none did
        x   <- (1 - lr decoupled_decay) x - lr sign(q)       signed=false: - lr q

    Peng, Kingma et al., 2024 (arXiv:2411.19870; formula and defaults as in the authors' code). D also contains lr: a
    schedule changes the weight of older gradients, and signed=false takes lr^2. `subtract` below 1 is from the paper's
    second version (formula from a summary). If all coefficients are sent (compress=none) and subtract=1, D is 0 after
    every step: sign-SGD on the mean gradient, for any decay. No parameter moves by more than lr, except by
    decoupled_decay. g is the output of the local optimizer: plain `optim=sgd` is the method, with its weight decay as
    part of g.

    Bytes: an all-gather of all messages in every step. Departures: those of `compress=dct_topk`. The sign of NaN is
    NaN. Topology: not used.
    """

    name: str = "demo"
    decay: float = setting(0.999, at_least=0, at_most=1)
    subtract: float = setting(1.0, at_least=0, at_most=1)
    signed: bool = True
    decoupled_decay: float = setting(0.0, at_least=0)
    usual: ClassVar = {"compress": "dct_topk"}
    supports = Algorithm.supports - {
        Feature.own_rates,
        Feature.message_loss,
        Feature.absence,
        Feature.topology,
        Feature.equal_updates,
        Feature.plain_sgd,
    }
    takes = AcceptedCompression.senders

    class State(NamedTuple):
        """Models, momenta, compression residuals, and the local optimizer."""

        x: Rows  # [k, P]
        D: Rows  # [k, P]
        compression_stats: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], D = 0, and the local optimizer before step 0."""
        return self.State(x, x.new_zeros(x.shape), self.compressor.compression_stats(x), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient, one all-gather and one update."""
        x, D, compression_stats, opt = s
        C, lr = self.compressor, self.local.lr(t)
        g, opt = self.local.direction(self.local.regularised(oracle(x), x), x, opt, t)
        D = add(scale(D, self.decay), g, alpha=lr)
        here = [Address(worker, t) for worker in net.workers]
        payloads = [C.encode(row, at) for row, at in zip(D, here, strict=True)]
        C.measure(payloads, D, here)
        for payload, row, at in zip(payloads, D, here, strict=True):
            C.add_decoded(payload, row, at, -self.subtract)
        q = x.new_zeros(1, x.shape[1])
        C.add_mean(net.allgather(payloads, C.sizes(t, x.dtype)), q[0], t, of_senders=True)
        u = q.sign().add_(q, alpha=0) if self.signed else q  # sign alone would turn NaN into 0
        x = scale(x, 1 - lr * self.decoupled_decay) if self.decoupled_decay else x
        return self.State(sub(x, u, alpha=lr), D, compression_stats, opt)
