"""PowerGossip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.dion import Thin
from decentral.algorithms.dpsgd import Mode
from decentral.algorithms.features import Feature
from decentral.compression.rows import payload_of
from decentral.host.machine import Lazy
from decentral.optim.rows import add
from decentral.randomness import numpy_generator
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
class PowerGossip(Algorithm):
    """PowerGossip: D-PSGD that averages along every edge in a low-rank approximation of the difference of the models.

        PG(x), round s = 1, 2, ..., for each edge lo < hi and matrix X [a, b], with w = W_lo,hi:
        s odd:   Q <- orth(Q),  P <- X_hi Q - X_lo Q         each end sends its X Q
        s even:  P <- orth(P),  Q <- X_hi^T P - X_lo^T P     each end sends its X^T P
        X_lo <- X_lo + w P Q^T,  X_hi <- X_hi - w P Q^T      for all edges at once

        mode=awc    x_i <- PG(x)_i + u_i                     rounds k t ... k t + k - 1; none in step 0
        mode=atc    x_i <- PG(x + u)_i                       rounds k t + 1 ... k t + k

    Vogels, Karimireddy & Jaggi, NeurIPS 2020 (arXiv:2008.01425; formula and numbers of rounds as in the authors' code,
    which trains as awc). P and Q stay from round to round, so they learn the directions in which the ends differ. orth
    is Gram-Schmidt, columns / (length + 1e-8). A convolution [o, i, h, w] is the matrix [o, i h w]; vectors are
    averaged exactly. PG preserves the mean of the models for any P and Q, and needs neither a step size nor error
    feedback. If both ends have the same matrix in a round, P or Q becomes 0 and that edge never averages the matrix
    again, as in the authors' code; therefore awc skips PG in step 0, where all models are equal. Full rank equals plain
    gossip only for square matrices.

    rank         number of columns k of P and Q, at most the smaller side of a matrix
    iterations   k, rounds per step; the authors use 1 or 2
    seed         of the first P and Q of each edge, which are normal and the same at both ends

    Bytes per edge, direction and round: rank a numbers (s odd) or rank b (s even) per matrix, and all vectors. W is
    symmetric and static; every message is needed.
    """

    name: str = "powergossip"
    rank: int = setting(1, at_least=1)
    iterations: int = setting(1, at_least=1)
    mode: Mode = Mode.awc
    seed: int = 0
    supports = (Algorithm.supports | {Feature.own_starts}) - {
        Feature.timeline,
        Feature.message_loss,
        Feature.absence,
        Feature.plain_sgd,
    }
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.whole, Need.static, Need.symmetric, Need.doubly_stochastic, Need.connected}
    )

    class State(NamedTuple):
        """Models, the factors of all matrices for each edge, and the local optimizer."""

        x: Rows  # [k, P]
        P: EdgeRows  # [E, rank times the rows of all matrices]; the same at both ends
        Q: EdgeRows  # [E, rank times the columns of all matrices]
        opt: Buffers

    @cached_property
    def _thin(self) -> Thin:
        """Return the factors of the rows, whose layout the (identity) compressor knows."""
        layout = self.compressor.layout
        thin = Thin(rank=self.rank).bound(layout, 0)
        thin.hidden = [True] * len(layout.shapes)
        return thin

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], normal P and Q, and the local optimizer before step 0."""
        matrices = self._thin.matrices()
        left, right = (matrices[-1].left.stop, matrices[-1].right.stop) if matrices else (0, 0)
        PQ = x.new_empty(len(net.local_edges), left + right)
        for e, (i, j, _) in enumerate(_edges(net)):
            drawn = numpy_generator(self.seed, "powergossip", min(i, j), max(i, j)).normal(size=left + right)
            PQ[e] = torch.from_numpy(drawn)
        return self.State(x, PQ[:, :left].clone(), PQ[:, left:].clone(), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient and `iterations` rounds of gossip."""
        x, P, Q, opt = s
        if self.mode is Mode.atc:
            x, opt = self.local.adapt(x, oracle(x), opt, t)
            for r in range(self.iterations):
                x = self.gossip(x, P, Q, net, self.iterations * t + 1 + r)
            return self.State(x, P, Q, opt)
        y = x.clone()
        for r in range(self.iterations if t else 0):
            y = self.gossip(y, P, Q, net, self.iterations * t + r, later=r == self.iterations - 1)
        g = oracle(x)
        net.arrive()
        u, opt = self.local(g, x, opt, t)
        return self.State(add(y, u), P, Q, opt)

    def gossip(self, x: Tensor, P: Tensor, Q: Tensor, net: Network, s: int, later: bool = False) -> Tensor:
        """Return PG(x) of round s, in the memory of x, and replace P and Q in place. `later`: see `Network.relay`."""
        matrices, odd = self._thin.matrices(), s % 2
        kept, new = (Q, P) if odd else (P, Q)
        vectors = [part for part, _ in self._thin.rest(matrices)]
        width, first = new.shape[1], net.workers.start
        sent = x.new_empty(len(kept), width + sum(part.stop - part.start for part in vectors))
        for e, (_, j, _) in enumerate(_edges(net)):
            row = x[j - first]
            for each in matrices:
                if odd:
                    torch.mm(each.M(row), orthonormalize(each.Q(Q[e])), out=each.P(sent[e]))
                else:
                    torch.mm(each.M(row).t(), orthonormalize(each.P(P[e])), out=each.Q(sent[e]))
            if vectors:
                torch.cat([row[part] for part in vectors], out=sent[e, width:])
        sizes = {"values": (x.dtype, sent.shape[1])}
        came = net.relay_payloads([payload_of(values=row) for row in sent], s, [sizes], later)
        for e, (i, j, w) in enumerate(_edges(net)):
            payload = came[e]
            assert payload is not None  # no message is lost
            row, d = x[j - first], payload.tensors["values"] - sent[e]
            new[e] = d[:width] if j < i else -d[:width]
            for each in matrices:
                left, right = (each.P(d), each.Q(Q[e])) if odd else (each.P(P[e]), each.Q(d))
                each.M(row).addmm_(left, right.t(), alpha=w)
            start = width
            for part in vectors:
                stop = start + part.stop - part.start
                row[part].add_(d[start:stop], alpha=w)
                start = stop
        return x


def _edges(net: Network) -> Iterator[tuple[int, int, float]]:
    """Yield i, j and W_ji of each edge i -> j into a local worker."""
    W = net.rounds.mixing(0)[0]
    local = slice(net.local_edges.start, net.local_edges.stop)
    for i, j in zip(net.edges.src[local].tolist(), net.edges.dst[local].tolist(), strict=True):
        yield i, j, dict(W.row(j))[i]


def orthonormalize(A: Tensor) -> Tensor:
    """Return A [m, k] with orthonormal columns by Gram-Schmidt, in its memory; a column of 0 stays 0."""
    for i, a in enumerate(A.unbind(1)):
        a.div_(a.norm() + 1e-8)
        rest = A[:, i + 1 :]
        rest.sub_(torch.outer(a, a @ rest))
    return A
