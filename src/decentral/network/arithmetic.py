"""The network's arithmetic on rows and received messages: in place, in blocks of columns, or by one kernel on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from decentral.host.machine import Lazy
from decentral.network import kernels
from decentral.network.payload import EdgeLayout, Star
from decentral.topology.delivery import Exchange
from decentral.topology.rounds import Rounds

if TYPE_CHECKING:
    from decentral.network import sums
else:
    sums = Lazy("decentral.network.sums")  # it imports Triton


class RowArithmetic(EdgeLayout):
    """The sums over messages and rows that a `Network` needs; nothing here communicates."""

    def __init__(self, rounds: Rounds, workers: range) -> None:
        super().__init__(rounds, workers)
        self.scratch = kernels.Scratch()
        self._relay_scratch = kernels.Scratch()
        self._sums: dict[object, object] = {}  # what `sums.written` remembers

    def collect(self, m: Tensor, y: Tensor, out: Tensor | None = None, weight: float = 1.0) -> Tensor:
        """x_i <- weight (y_i + sum_{j in N_i} m_{j->i}): [E, ceil(P / d)], [k, P] -> [k, P], in y's memory or in `out`.

        3 passes over memory for each message, and 2 in the cache for the weight.
        """
        pieces = self.rounds.slices(y.shape[-1])
        x = y if out is None else out
        if kernels.small(m, 1) or not len(m):
            x = y if out is None else out.copy_(y)
            return (kernels.collect_small(m, x, pieces, self._local_nodes) if len(m) else x).mul_(weight)
        for h, (piece, (edges, stars)) in enumerate(zip(pieces, self.stars, strict=True)):
            source, target = y[:, piece], x[:, piece]
            if kernels.on_gpu(m) and sums.written(
                self._sums,
                (h, weight),
                partial(_collected, edges, stars, weight),
                target,
                source,
                m[:, : target.shape[1]],
            ):
                continue
            for columns in kernels.blocks(source.shape[-1], len(edges) + 2 * len(y), m):
                block, total, messages = (
                    rows[:, columns].unbind(0) for rows in (source, target, m[:, : source.shape[-1]])
                )
                for i, into in stars:
                    kernels.sum_of(block[i], [messages[edges[place]] for place in into], total[i])
                    if weight != 1:
                        total[i].mul_(weight)
        return x

    def outgoing(self, y: Tensor, m: Tensor) -> list[Tensor]:
        """Return the sum to send back over each local edge e = (i -> j): y_j + sum_{l in N_j, l != i} m_{l->j}, [P_h].

        For algorithms that transform these sums before sending; `relay` does both. y [k, P] is unchanged; the sums are
        views of it or of m [E, ceil(P / d)], which is donated.
        """
        going: dict[int, Tensor] = {}
        self._add_up(y, m, going)
        return [going[row] for row in range(len(m))]

    def _mix_piece(self, x: Tensor, remote: dict[int, Tensor], exchange: Exchange, h: int) -> None:
        """Mix piece h of the local rows [k, ..., P'] with the received rows, by worker."""
        W, memo = exchange.pieces[h], exchange.memo
        if exchange.combine is not None:
            exchange.combine(x, remote, W, self.workers.start)
            return
        if not remote and kernels.on_gpu(x):
            first = self.workers.start

            def plan() -> sums.Plan:
                return range(len(x)), [[[(j - first, weight) for j, weight in W.row(i)] for i in self.workers]]

            if sums.written(memo, ("sums", h), plan, x, x):
                return
        if ("product", h) not in memo:
            memo["product", h] = kernels.Product(W, self.workers, list(remote))
        if memo["product", h].suits(x):
            memo["product", h].into(x, list(remote.values()))
            return
        if ("terms", h) not in memo:
            memo["terms", h] = kernels.Terms.of(W, self.workers)
        kernels.mix(x, memo["terms", h], remote, self.scratch)

    def _add_up(self, y: Tensor, m: Tensor, going: dict[int, Tensor]) -> None:
        """Write the sum for each local edge to the rows `going` by edge. If one is missing, overwrite the received
        messages m, or use the row of y itself, and record it there."""
        pieces, widths = self.rounds.slices(y.shape[-1]), self.piece_widths(y.shape[-1])
        for (edges, stars), piece, width in zip(self.stars, pieces, widths, strict=True):
            source = y[:, piece]
            for i, into in stars:
                alone = len(into) == 1 and source[i].is_contiguous()
                for place, over in zip(into, kernels.in_place_order(len(into)), strict=True):
                    going.setdefault(edges[place], source[i] if alone else m[edges[into[over]], :width])
            for columns in kernels.blocks(width, 2 * len(edges) + len(y), m):
                block, old = source[:, columns].unbind(0), m[:, :width][:, columns].unbind(0)
                for i, into in stars:
                    incoming = [old[edges[place]] for place in into]
                    self._relay_block(block[i], incoming, [going[edges[place]][columns] for place in into])

    def _relay_block(self, y: Tensor, incoming: Sequence[Tensor], outgoing: Sequence[Tensor]) -> None:
        """`kernels.relay_from` with scratch memory."""
        rows = kernels.scratch_rows(len(incoming))
        kernels.relay_from(y, incoming, outgoing, self._relay_scratch.rows(y, rows, len(y)) if rows else ())


def _collected(edges: Sequence[int], stars: Sequence[Star], weight: float) -> sums.Plan:
    """Return the sums of `collect`: (a worker's own row, the messages it received)."""
    own = [[(i, weight)] for i, _ in stars]
    return [i for i, _ in stars], [own, [[(edges[place], weight) for place in into] for _, into in stars]]
