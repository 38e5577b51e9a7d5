"""PowerSGD: every matrix as a product of two thin ones."""

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
    """A parameter that is compressed: where it lies in a row, and what its thin matrices are."""

    number: int
    part: slice
    rows: int
    columns: int
    rank: int
    left: slice
    """Where its P [rows, rank] lies in the first message."""
    right: slice
    """Where its Q [columns, rank] lies in the second one, and in the memory."""

    def M(self, row: Tensor) -> Tensor:
        """The matrix [rows, columns] in a row."""
        return row[self.part].view(self.rows, self.columns)

    def P(self, message: Tensor) -> Tensor:
        """P [rows, rank] in the first message."""
        return message[self.left].view(self.rows, self.rank)

    def Q(self, message: Tensor) -> Tensor:
        """Q [columns, rank] in the second message, or in the memory."""
        return message[self.right].view(self.columns, self.rank)


@dataclass
class PowerSGD(Compressor):
    """Low-rank approximation by one power iteration, warm-started (Vogels, Karimireddy & Jaggi, NeurIPS 2019).

        for each parameter with two dimensions or more, as a matrix M_i [a, b] of worker i (a: its first dimension),
        M_i = e_i there:
        P = orthonormal(1/n sum_i M_i Q),   Q_i = M_i^T P,   Q <- 1/n sum_i Q_i,   C(e_i) = P Q_i^T,   mean = P Q^T

    rank  number of columns of P and Q

    Q is the memory: shared by all workers, at first normal by (seed, parameter), then that of the step before. It
    needs two all-reduces, of which the second waits for the first, and so is no encoding of one worker's row: only
    methods that average all workers can use it. All else (biases) is sent as it is, in the first all-reduce.

    Bytes of the messages: 4 (rank (a + b) summed over matrices + everything else) for float32 rows, each all-reduced.
    An entry that is infinite or no number makes the mean of its parameter so.

    Both products are computed in every step, as in the paper. The package that its first author released
    (epfml/powersgd) computes one of them per step, P and Q in turn, so its iterates differ.

    Both means are sums over the workers of a process, then over processes, so that their last digits depend on how many
    there are. The QR decomposition amplifies that where columns of P are nearly dependent, and Q remembers it: iterates
    with other numbers of processes drift apart (numbers in docs/compression.md).

    Departures. A matrix for which the thin ones are no smaller is sent as it is. P comes from a QR decomposition, not
    from Gram and Schmidt's with 1e-8 added: it is orthonormal where M has a lower rank, too. A column of Q that is 0,
    because a gradient was, begins again: it would stay 0. The residual is the worker's own, M_i - P Q_i^T, as the
    paper's Algorithm 2 says; the authors' code keeps M_i - P Q^T, which has the same mean over workers.
    """

    name: str = "powersgd"
    error_feedback: bool = True
    rank: int = setting(2, at_least=1)
    by_length: ClassVar[bool] = False

    def memory(self, x: Tensor, num_workers: int) -> Tensor:
        """All Q before step 0, one after the other."""
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
        for each in matrices:  # orthonormal columns that span those of P, or more if these are dependent
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
        for each in matrices:  # columns of Q that are 0 begin again
            Q = each.Q(memory)
            torch.where((Q == 0).all(0), each.Q(first), Q, out=Q)
        return g, r, memory

    def left(self, e: Tensor, memory: Tensor, matrices: list[_Matrix]) -> Tensor:
        """M_i Q of all matrices, then what is sent as it is: [k, M]."""
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
        """M_i <- M_i - P Q_i^T, and 0 where everything was sent."""
        for row, own in zip(e, q, strict=True):
            for each in matrices:
                each.M(row).addmm_(each.P(p), each.Q(own).t(), alpha=-1)
        for part, _ in self.rest(matrices):
            e[:, part] = 0

    def _measure(self, e: Tensor, p: Tensor, q: Tensor, matrices: list[_Matrix]) -> None:
        """Note what was left out: the share of the numbers that travel stands for that of the coordinates."""
        left = self.scratch.take("left out", e.numel(), e).view(e.shape).copy_(e)
        self._subtract_sent(left, p, q, matrices)
        for place, (row, rest) in enumerate(zip(e, left, strict=True)):
            total, missed = float(row.dot(row)), float(rest.dot(rest))
            sent = total - 2 * float(row.dot(rest)) + missed
            self.read(place, total, sent, missed, (len(p) + q.shape[1]) / len(row))

    def matrices(self) -> list[_Matrix]:
        """The parameters that are compressed."""
        found: list[_Matrix] = []
        left = right = 0
        for number, (shape, part) in enumerate(zip(self.layout.shapes, self.layout.slices, strict=True)):
            a, b = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (0, 0)
            if rank := self.rank_of(number, a, b):
                ends = left + a * rank, right + b * rank
                found.append(_Matrix(number, part, a, b, rank, slice(left, ends[0]), slice(right, ends[1])))
                left, right = ends
        return found

    def rank_of(self, number: int, a: int, b: int) -> int:
        """How many columns the thin matrices of parameter `number` [a, b] have; 0: it is sent as it is."""
        rank = min(self.rank, a, b)
        return rank if rank * (a + b) < a * b else 0

    def rest(self, matrices: list[_Matrix]) -> list[tuple[slice, slice]]:
        """The parameters that are sent as they are: where they lie in a row, and in the first message."""
        compressed = {matrix.number for matrix in matrices}
        start, found = matrices[-1].left.stop if matrices else 0, []
        for number, part in enumerate(self.layout.slices):
            if number not in compressed:
                found.append((part, slice(start, start := start + part.stop - part.start)))
        return found
