"""All workers in this process: rows are moved by indexing."""

from __future__ import annotations

from torch import Tensor

from decentral.network import kernels
from decentral.network.network import Network
from decentral.network.rounds import Losses
from decentral.topology.schedule import Schedule


class LocalNetwork(Network):
    """The simulator: k = n. Every verb works in place, with one block of columns as scratch memory."""

    def __init__(self, schedule: Schedule, losses: Losses) -> None:
        super().__init__(schedule, range(schedule.num_workers), losses)

    def gather(self, rows: Tensor) -> Tensor:
        """The rows themselves."""
        return rows.cpu()

    def average(self, x: Tensor) -> Tensor:
        """1/n sum_j x_j: [n, P] -> [P]."""
        return x.mean(0)

    def _mix(self, x: Tensor, pieces: list[slice], rows: list[list[list[tuple[int, float]]]]) -> Tensor:
        for piece, weights in zip(pieces, rows, strict=True):
            kernels.mix(x[..., piece], weights, {}, 0)
        return x

    def _mean(self, x: Tensor) -> Tensor:
        kernels.average_rows(x)
        return x

    def _relay(self, y: Tensor, m: Tensor) -> Tensor:
        if not len(m):
            return m
        pieces, reverse = self.schedule.slices(y.shape[-1]), self.links.reverse.tolist()
        scratch = m.new_empty(0)
        for columns in kernels.blocks(m.shape[-1], len(m) + 1, m):
            before = m[:, columns].clone()
            if scratch.shape != before[0].shape:
                scratch = before.new_empty(before.shape[1])
            for i, h, edges in self.local_stars:
                source = y[i, pieces[h]][columns]
                width = len(source)
                kernels.relay_from(
                    source,
                    [before[e, :width] for e in edges],
                    [m[reverse[e], columns][:width] for e in edges],
                    scratch[:width],
                )
        return m
