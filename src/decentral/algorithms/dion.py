"""Dion: distributed orthonormal updates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.compression.powersgd import PowerSGD
from decentral.host.machine import Lazy
from decentral.optim.muon import hidden_matrices
from decentral.optim.rows import add, sub
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows, Shared
    from decentral.network.network import Network
else:
    torch = Lazy("torch")


class Thin(PowerSGD):
    """PowerSGD's factors for all hidden matrices, even small ones."""

    hidden: list[bool]

    def rank_of(self, number: int, a: int, b: int) -> int:
        """See `PowerSGD.rank_of`."""
        return min(self.rank, a, b) if self.hidden[number] else 0


@dataclass
class Dion(Algorithm):
    """Dion: orthonormal low-rank updates; only low-rank factors of the workers' momenta are averaged.

        for each hidden matrix [a, b]:
        M_i <- M_i + g_i                        M^0 = 0, g_i at x, the same for all
        P    = orthonormal(1/n sum_i M_i Q)     by a QR decomposition
        R    = 1/n sum_i M_i^T P
        M_i <- M_i - (1 - mu) P R^T
        Q   <- R / |columns of R|
        x   <- (1 - lr weight_decay) x - lr sqrt(a / b) P Q^T

    Ahn, Xu et al., 2025 (arXiv:2504.05295; formula as in the authors' code, the paper's text was not checked). The M_i
    differ, but x and the mean of the M_i equal those of one worker with the mean gradient. A convolution [o, i, h, w]
    is the matrix [o, i h w]. Vectors, matrices whose names contain one of `others`, and the last matrix (the head) use
    the local optimizer on their mean gradient, for example `optim=adamw`, at the same lr. A matrix uses only its weight
    decay, so that decay must not be part of gradients in momentum and Adam (optim=sgd, optim=adamw).

    rank         rank of the updates, at most the smaller side of a matrix
    others       names, or parts of names, of matrices that the local optimizer updates: embeddings and heads
    others_last  the local optimizer also updates the last matrix

    Bytes: rank (a + b) numbers per hidden matrix and all other parameters, in two all-reduces, the second after the
    first. Departures: the authors' orth is a randomized Cholesky QR. A zero column of R leaves that of Q unchanged and
    moves nothing. Topology: not used.
    """

    name: str = "dion"
    rank: int = setting(16, at_least=1)
    mu: float = setting(0.95, at_least=0, below=1)
    others: list[str] = setting(["embedding", "tokens", "places", "head"])
    others_last: bool = True
    supports = Algorithm.supports - {
        Feature.timeline,
        Feature.own_rates,
        Feature.message_loss,
        Feature.absence,
        Feature.topology,
        Feature.plain_sgd,
    }

    class State(NamedTuple):
        """Models, momenta, the right factors of all matrices, and the local optimizer."""

        x: Rows  # [k, P]
        M: Rows  # [k, P]; 0 except for hidden matrices
        Q: Shared
        opt: Buffers

    @cached_property
    def _thin(self) -> Thin:
        """Return the factors of the rows, whose layout the (identity) compressor knows."""
        layout = self.compressor.layout
        thin = Thin(rank=self.rank).bound(layout, 0)
        thin.hidden = hidden_matrices(layout, self.others, self.others_last)
        return thin

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], M = 0, a normal Q per parameter, and the local optimizer before step 0."""
        return self.State(x, x.new_zeros(x.shape), self._thin.memory(x, net.n), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient, two all-reduces and one update."""
        x, M, Q, opt = s
        thin, matrices = self._thin, self._thin.matrices()
        g = oracle(x)
        M = add(M, g)
        p = net.mean(thin.left(M, Q, matrices))[0]
        R = M.new_empty(len(M), len(Q))
        for each in matrices:
            each.P(p).copy_(torch.linalg.qr(each.P(p)).Q)
            for row, own in zip(M, R, strict=True):
                torch.mm(each.M(row).t(), each.P(p), out=each.Q(own))
        r = net.mean(R)[0] if matrices else R[0]
        g.zero_()
        for part, place in thin.rest(matrices):
            g[:, part], M[:, part] = p[place], 0.0
        x, opt = self.local.adapt(x, g, opt, t)
        d = x.new_zeros(1, x.shape[1])
        for each in matrices:
            for row in M:
                each.M(row).addmm_(each.P(p), each.Q(r).t(), alpha=self.mu - 1)
            lengths = each.Q(r).norm(dim=0)
            new = each.Q(r) / (lengths + 1e-8)
            torch.mm(each.P(p), new.t(), out=each.M(d[0])).mul_(sqrt(each.rows / each.columns))
            each.Q(Q).copy_(torch.where(lengths > 0, new, each.Q(Q)))
        return self.State(sub(x, d, alpha=self.local.lr(t)), M, Q, opt)
