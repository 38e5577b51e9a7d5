"""PowerSGD: low-rank approximation of every matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.compression.compressor import Compressor
from decentral.host.machine import Lazy
from decentral.randomness import torch_generator
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.network.network import Network
else:
    torch = Lazy("torch")


class _Matrix(NamedTuple):
    """A compressed parameter: its position in a row, and its low-rank factors."""

    number: int
    part: slice
    rows: int
    columns: int
    rank: int
    left: slice
    """Position of its P [rows, rank] in the first message."""
    right: slice
    """Position of its Q [columns, rank] in the second message and in the memory."""

    def M(self, row: Tensor) -> Tensor:
        """Return the matrix [rows, columns] in a row."""
        return row[self.part].view(self.rows, self.columns)

    def P(self, message: Tensor) -> Tensor:
        """Return P [rows, rank] in the first message."""
        return message[self.left].view(self.rows, self.rank)

    def Q(self, message: Tensor) -> Tensor:
        """Return Q [columns, rank] in the second message or in the memory."""
        return message[self.right].view(self.columns, self.rank)


@dataclass
class PowerSGD(Compressor):
    """Low-rank approximation by one power iteration, warm-started (Vogels, Karimireddy & Jaggi, NeurIPS 2019).

        for each parameter with two dimensions or more, as a matrix M_i [a, b] of worker i (a: its first dimension),
        M_i = e_i there:
        P = orthonormal(1/n sum_i M_i Q),   Q_i = M_i^T P,   Q <- 1/n sum_i Q_i,   C(e_i) = P Q_i^T,   mean = P Q^T

    rank  number of columns of P and Q

    Q is the memory, shared by all workers: initially normal by (seed, parameter), then that of the previous step. Two
    all-reduces, the second after the first, are needed, so a worker cannot encode its row alone: only methods that
    average all workers can use it. Other parameters (biases) are sent uncompressed in the first all-reduce.

    Bytes of the messages: 4 (rank (a + b) summed over matrices + everything else) for float32 rows, each all-reduced.
    A non-finite entry makes the mean of its parameter non-finite.

    Both products are computed in every step, as in the paper. The first author's package (epfml/powersgd) computes one
    of them per step, P and Q in turn, so its iterates differ.

    Both means are sums over the workers of a process, then over processes, so their last digits depend on the number of
    processes. The QR decomposition amplifies this if columns of P are nearly dependent, and Q carries it over: iterates
    with different numbers of processes drift apart (numbers in docs/compression.md).

    Departures. A matrix is sent uncompressed unless its factors are smaller. P comes from a QR decomposition, not from
    Gram-Schmidt with 1e-8 added: it is orthonormal even if M has a lower rank. A column of Q that is 0, because a
    gradient was, is redrawn: it would stay 0. The residual is the worker's own, M_i - P Q_i^T, as in the paper's
    Algorithm 2; the authors' code keeps M_i - P Q^T, which has the same mean over workers.
    """

    name: str = "powersgd"
    error_feedback: bool = True
    rank: int = setting(2, at_least=1)
    by_length: ClassVar[bool] = False

    def memory(self, x: Tensor, num_workers: int) -> Tensor:
        """Return all Q before step 0, concatenated."""
        found = [x.new_zeros(0)]
        for matrix in self.matrices():
            generator = torch_generator("cpu", self.seed, "powersgd", matrix.number)
            size = matrix.columns * matrix.rank
            found.append(torch.randn(size, generator=generator, dtype=torch.float64).to(x))
        return torch.cat(found)

    def combine(self, g: Tensor, r: Tensor, memory: Tensor, net: Network, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """See `Compressor.combine` and the formula."""
        e, matrices = self.error_fed(g, r), self.matrices()
        p = net.mean(self.left(e, memory, matrices))[0]
        for each in matrices:  # orthonormal columns whose span contains P's
            each.P(p).copy_(torch.linalg.qr(each.P(p)).Q)
        width = matrices[-1].right.stop if matrices else 0
        q = self.scratch.take("right", len(e) * width, e).view(len(e), width)
        for row, own in zip(e, q, strict=True):
            for each in matrices:
                torch.mm(each.M(row).t(), each.P(p), out=each.Q(own))  # Q_i = M_i^T P
        if self.measures(t):
            self._measure(e, p, q, matrices)
        if self.error_feedback:
            self._subtract_sent(e, p, q, matrices)
        if matrices:
            q = net.mean(q)
        for each in matrices:
            torch.mm(each.P(p), each.Q(q[0]).t(), out=each.M(g[0]))
        for part, place in self.rest(matrices):
            g[0][part] = p[place]
        g[1:] = g[0]
        memory.copy_(q[0])
        first = self.scratch.remember("first", (memory.dtype, memory.device), lambda: self.memory(memory, 1))
        for each in matrices:  # redraw zero columns of Q
            Q = each.Q(memory)
            torch.where((Q == 0).all(0), each.Q(first), Q, out=Q)
        return g, r, memory

    def left(self, e: Tensor, memory: Tensor, matrices: list[_Matrix]) -> Tensor:
        """Return M_i Q of all matrices, then the uncompressed parameters: [k, M]."""
        rest = self.rest(matrices)
        width = max(last.stop for last in (slice(0), *(one.left for one in matrices), *(place for _, place in rest)))
        p = self.scratch.take("left", len(e) * width, e).view(len(e), width)
        for row, out in zip(e, p, strict=True):
            for each in matrices:
                torch.mm(each.M(row), each.Q(memory), out=each.P(out))
            for part, place in rest:
                out[place] = row[part]
        return p

    def _subtract_sent(self, e: Tensor, p: Tensor, q: Tensor, matrices: list[_Matrix]) -> None:
        """Compute M_i <- M_i - P Q_i^T, and 0 for uncompressed parameters."""
        for row, own in zip(e, q, strict=True):
            for each in matrices:
                each.M(row).addmm_(each.P(p), each.Q(own).t(), alpha=-1)
        for part, _ in self.rest(matrices):
            e[:, part] = 0

    def _measure(self, e: Tensor, p: Tensor, q: Tensor, matrices: list[_Matrix]) -> None:
        """Record the compression error; the share of numbers sent stands for the share of coordinates."""
        left = self.scratch.take("left out", e.numel(), e).view(e.shape).copy_(e)
        self._subtract_sent(left, p, q, matrices)
        for place, (row, rest) in enumerate(zip(e, left, strict=True)):
            total, missed = float(row.dot(row)), float(rest.dot(rest))
            sent = total - 2 * float(row.dot(rest)) + missed
            self.read(place, total, sent, missed, (len(p) + q.shape[1]) / len(row))

    def matrices(self) -> list[_Matrix]:
        """Return the compressed parameters."""
        matrices: list[_Matrix] = []
        left = right = 0
        for number, (shape, part) in enumerate(zip(self.layout.shapes, self.layout.slices, strict=True)):
            a, b = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (0, 0)
            if rank := self.rank_of(number, a, b):
                ends = left + a * rank, right + b * rank
                matrices.append(_Matrix(number, part, a, b, rank, slice(left, ends[0]), slice(right, ends[1])))
                left, right = ends
        return matrices

    def rank_of(self, number: int, a: int, b: int) -> int:
        """Return the rank of the factors of parameter `number` [a, b]; 0: it is sent uncompressed."""
        rank = min(self.rank, a, b)
        return rank if rank * (a + b) < a * b else 0

    def rest(self, matrices: list[_Matrix]) -> list[tuple[slice, slice]]:
        """Return the positions of uncompressed parameters in a row and in the first message."""
        compressed = {matrix.number for matrix in matrices}
        start, found = matrices[-1].left.stop if matrices else 0, []
        for number, part in enumerate(self.layout.slices):
            if number not in compressed:
                found.append((part, slice(start, start := start + part.stop - part.start)))
        return found
