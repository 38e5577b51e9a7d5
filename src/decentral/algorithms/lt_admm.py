"""LT-ADMM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.algorithms.given_samples import GivenSamples
from decentral.compression.rows import payload_of
from decentral.host.machine import Lazy
from decentral.optim.rows import copy, scale, sub
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, EdgeRows, Oracle, Rows
    from decentral.network.network import Network
else:
    torch = Lazy("torch")


@dataclass
class LTADMM(Algorithm):
    """LT-ADMM: exact local steps, from the alternating direction method of multipliers on edges.

        x_i  <- x_i + u_i - c_i              and, when t + 1 is a multiple of tau = `period_steps`,
        z_ij <- (1 - alpha) z_ij - alpha (z_ji - 2 x_j)      for each neighbor j; z_ij = x_i^0 first
        c_i  <- beta (d_i x_i - sum_j z_ij)                  d_i neighbors; c^0 = 0

    arXiv:2501.13516 (formula from third parties' code, the paper's text was not checked: its penalty may use the x_i of
    each local step). Only the product of the paper's beta and rho counts, which is beta here, and z / rho is z here.
    With tau = 1, alpha = 1/2, a common start and beta = 1/3 on a ring it is `extra`. It is exact for any tau with a
    constant step, not with a nonlinear local optimizer (Adam, Muon). With alpha = 1/2 the c_i sum to 0. Bytes: a
    different row for each edge and direction, once per period. The graph is undirected and static; weights do not
    matter. Every message is needed.

    beta    step of the corrections; null: 1 / (tau (1 + the largest number of neighbors))
    alpha   relaxation
    """

    name: str = "lt_admm"
    period_steps: int = setting(4, at_least=1)
    beta: float | None = setting(None, above=0)
    alpha: float = setting(0.5, above=0, at_most=1)
    supports = (Algorithm.supports | {Feature.own_starts}) - {
        Feature.timeline,
        Feature.message_loss,
        Feature.absence,
        Feature.plain_sgd,
    }
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.whole, Need.static, Need.symmetric, Need.connected})

    class State(NamedTuple):
        """Models, corrections, the variables of edges, and the local optimizer."""

        x: Rows  # [k, P]
        c: Rows  # [k, P]
        z: EdgeRows  # [E, P]: row i -> j is z_ji
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> Any:
        """Return the models x [k, P], c = 0, z_ij = x_i, and the local optimizer before step 0."""
        return LTADMM.State(x, x.new_zeros(x.shape), x[self.receivers(net)], self.local.init(x))

    def step(self, s: Any, oracle: Oracle, net: Network, t: int) -> Any:
        """Take one local update, and exchange a row over each edge at the end of a period."""
        x, opt = self.local.adapt(s.x, oracle(s.x), s.opt, t)
        return self.exchange(s._replace(x=sub(x, s.c), opt=opt), net, t)

    def exchange(self, s: Any, net: Network, t: int) -> Any:
        """Complete step t after the local update."""
        x, c, z = s.x, s.c, s.z
        if (t + 1) % self.period_steps == 0:
            at = self.receivers(net)
            sent = sub(z.clone(), x[at], alpha=2.0)
            sizes = {"values": (x.dtype, x.shape[1])}
            z = scale(z, 1 - self.alpha)
            for row, came in zip(z, net.relay_payloads([payload_of(values=m) for m in sent], t, [sizes]), strict=True):
                assert came is not None  # no message is lost
                row.sub_(came.tensors["values"], alpha=self.alpha)
            degrees = np.bincount(net.edges.dst, minlength=net.n)
            beta = self.beta or 1 / (self.period_steps * (1 + degrees.max()))
            c = scale(copy(x, out=c), x.new_tensor(degrees[net.workers.start : net.workers.stop])[:, None])
            c = scale(c.index_add_(0, x.new_tensor(at).long(), z, alpha=-1), float(beta))
        return s._replace(c=c, z=z)

    def receivers(self, net: Network) -> list[int]:
        """Return the index of the local worker j of each edge i -> j."""
        local = slice(net.local_edges.start, net.local_edges.stop)
        return (net.edges.dst[local] - net.workers.start).tolist()  # type: ignore[no-any-return]


@dataclass
class LTADMMVR(GivenSamples, LTADMM):
    """LT-ADMM-VR: LT-ADMM with variance-reduced gradients, from a table of gradients of all samples.

        G_i = 1/B sum_s (g_is(x_i) - T_is) + 1/m sum_s T_is  s: `batch` random samples; the local update uses G
        x_i <- x_i + u_i - c_i
        T_is <- g_is(x_i)                                    for these s; and the exchange of `lt_admm`

    T_is = g_is(x_i) at the start of every period, or of the first one (`refill`). Source, settings, bytes and graph: as
    `lt_admm`; formula from third parties' code. A step takes 2 B sample gradients, and a refill m. The table has m rows
    per worker.

    refill   true: the table is computed anew at the start of each period; false: only at the start of the run
    """

    name: str = "lt_admm_vr"
    refill: bool = True
    supports = (GivenSamples.supports & LTADMM.supports) | {Feature.own_starts}

    class State(NamedTuple):
        """The state of `lt_admm`, and the table."""

        x: Rows  # [k, P]
        c: Rows  # [k, P]
        z: EdgeRows  # [E, P]
        opt: Buffers
        table: Rows  # [k, m, P]

    def init(self, x: Tensor, net: Network) -> Any:
        """Return the state of `lt_admm`, and an empty table."""
        table = x.new_zeros(len(x), self.num_samples, x.shape[1])
        return LTADMMVR.State(**super().init(x, net)._asdict(), table=table)

    def step(self, s: Any, oracle: Oracle, net: Network, t: int) -> Any:
        """Take one local update with gradients of a batch before and after it; exchange at the end of a period."""
        x, c, _, opt, table = s
        if t % self.period_steps == 0 and (self.refill or t == 0):
            table = copy(self.at(oracle, x, self.all_samples(net)), out=table)
        own, drawn = torch.arange(len(x))[:, None], self.samples(net, t)
        g = (self.at(oracle, x, drawn) - table[own, drawn]).mean(1) + table.mean(1)
        x, opt = self.local.adapt(x, g, opt, t)
        x = sub(x, c)
        table[own, drawn] = self.at(oracle, x, drawn)
        return self.exchange(s._replace(x=x, opt=opt), net, t)
