"""SparseLoCo."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.compression.rows import AcceptedCompression
from decentral.optim.rows import copy, scale, sub
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, RevisionOf, Rows, Shared
    from decentral.network.network import Network


class MeanOf(Enum):
    """The divisor of each coordinate of the mean: all workers, or those that sent it."""

    workers = "workers"
    senders = "senders"


@dataclass
class SparseLoCo(Algorithm):
    """SparseLoCo: local steps, and periodically an outer step along the mean of sparsified model changes.

        x_i <- x_i + u_i                     and, when t + 1 is a multiple of H = `period_steps`,
        e_i <- beta e_i + (phi - x_i)        beta = `error_decay`, e^0 = 0
        e_i <- e_i - C(e_i)                  C: `compress=`, for example topk with compress.keep=0.0156
        phi <- phi - outer_lr 1/n sum_j C(e_j),  x_i <- phi     mean_of=senders: each coordinate divided by the number
                                                                of workers that sent it, as the released code does

    arXiv:2508.15706 (formula from a summary and from the code of templar, the paper's text was not checked): beta =
    0.95, outer_lr = 1, H = 30, no outer momentum. With compress=none e is 0 after every outer step: `diloco` with
    outer_momentum=0. The published C keeps the 64 largest of every 64 x 64 chunk of a matrix: `compress=dct_topk
    compress.transform=none compress.k=64`. Departures: the published C also rounds to two bits, which `compress=` does
    not offer. The code includes outer_lr in e, and clips every worker's message to the median norm. Topology: not used.
    """

    name: str = "sparseloco"
    period_steps: int = setting(30, at_least=1, as_sgd=1)
    outer_lr: float = setting(1.0, at_least=0)
    error_decay: float = setting(0.95, at_least=0, at_most=1)
    mean_of: MeanOf = setting(MeanOf.workers, older=MeanOf.workers)
    supports = (Algorithm.supports | {Feature.own_steps, Feature.error_feedback}) - {
        Feature.message_loss,
        Feature.absence,
        Feature.topology,
    }

    class State(NamedTuple):
        """Models, the last outer model, residuals, the compressor's memory, and the local optimizer."""

        x: Rows  # [k, P]
        phi: Rows  # [k, P]
        e: Rows  # [k, P]; [k, 0] without error feedback
        memory: Shared
        compression_stats: Rows
        opt: Buffers

    @property
    def takes(self) -> AcceptedCompression:
        """Return all compressors; with mean_of=senders, those whose messages list their coordinates."""
        return AcceptedCompression.means if self.mean_of is MeanOf.workers else AcceptedCompression.senders

    def revision(self, of: RevisionOf) -> int:
        """Return 2 with a warm-up of the compressor, which took H times as long in revision 1."""
        return 2 if of.warms_up and self.period_steps > 1 else 1

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], phi = x, e = 0, and the local optimizer before step 0."""
        C = self.compressor
        return self.State(x, x.clone(), C.residual(x), C.memory(x, net.n), C.compression_stats(x), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one local update, and average compressed rows at the end of a period."""
        x, phi, e, memory, compression_stats, opt = s
        x, opt = self.local.adapt(x, oracle(x), opt, t)
        if (t + 1) % self.period_steps == 0:
            D, e = sub(phi, x, out=x), scale(e, self.error_decay)
            if self.mean_of is MeanOf.senders:
                D, e, memory = self.compressor.combine(D, e, memory, net, t // self.period_steps, of_senders=True)
            else:
                D, e, memory = self.compressor.combine(D, e, memory, net, t // self.period_steps)
            phi = sub(phi, D, alpha=self.outer_lr)
            x = copy(phi, out=x)
        return self.State(x, phi, e, memory, compression_stats, opt)
