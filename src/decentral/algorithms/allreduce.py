"""All-reduce SGD: the centralized baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from decentral.algorithms.algorithm import Algorithm, Parts
from decentral.algorithms.features import Feature
from decentral.compression.rows import AcceptedCompression
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows, Shared
    from decentral.network.network import Network


@dataclass
class AllReduce(Algorithm):
    """All-reduce SGD: average the gradients of all workers in every step (the centralized baseline).

        x_i <- x_i + Opt(1/n sum_j g_j)

    All workers keep the same model. The RelaySGD and Bagua authors average models instead (`algo=model_averaging`):
    equivalent for SGD with momentum, which is linear, but not for Adam. The topology is not used.

    With `compress=` workers send C(e_j), e_j = g_j + r_j, where the residual r_j is the previous compression error
    (error feedback; Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019, with the local optimizer after the
    mean):

        x_i <- x_i + Opt(1/n sum_j C(e_j)),   r_j <- e_j - C(e_j)

    overlap_backward   in simulated time, gradients travel during the backward pass, as in DistributedDataParallel; it
                       takes two thirds of a gradient. They travel in B buckets of at most 25 MB, each as soon as all
                       workers have it and the previous bucket has arrived: if a worker begins its gradient at s_i and
                       takes g_i,

        begin_b = max(begin_(b-1) + its all-reduce, max_i (s_i + (1/3 + 2/3 b/B) g_i)),   b = 1 ... B
    """

    name: str = "allreduce"
    overlap_backward: bool = setting(False, older=False)
    supports = (Algorithm.supports | {Feature.error_feedback}) - {
        Feature.own_rates,
        Feature.message_loss,
        Feature.topology,
    }
    takes = AcceptedCompression.means

    class State(NamedTuple):
        """Models, residuals, the compressor's memory and statistics, and the local optimizer."""

        x: Rows  # [k, P]
        r: Rows  # [k, P]; [k, 0] without error feedback
        memory: Shared
        compression_stats: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], r^0 = 0, and the local optimizer before step 0."""
        C = self.compressor
        return self.State(x, C.residual(x), C.memory(x, net.n), C.compression_stats(x), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient, all-reduce it, and apply one update."""
        g = oracle(s.x)
        net.traffic.overlaps = self.overlap_backward
        g, r, memory = self.compressor.combine(g, s.r, s.memory, net, t)  # 1/n sum_j C(g_j + r_j)
        net.traffic.overlaps = False
        x, opt = self.local.adapt(s.x, g, s.opt, t)
        return self.State(x, r, memory, s.compression_stats, opt)

    def parts(self, s: State) -> Parts:
        """See `Algorithm`."""
        return Parts(replicas=("x", "opt"))
