"""AR-Topk: the places of one worker's largest entries, for all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

from decentral.compression.compressor import Collectives, Compressor
from decentral.compression.ratio import Ratio
from decentral.compression.sparse import check_indices, index_type
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.cluster.links import Prices
    from decentral.compression.row_layout import RowLayout


class Select(Enum):
    """Whose places they are: everybody's in turn, or those of the worker whose gradient is largest."""

    star = "star"
    var = "var"


class Statistic(Enum):
    """How large a gradient is: its norm, or the variance of its entries."""

    norm = "norm"
    variance = "variance"

    def of(self, g: Tensor) -> Tensor:
        """For gradients g [k, P]: [k, 1]."""
        import torch

        return torch.linalg.vector_norm(g, dim=1, keepdim=True) if self is Statistic.norm else g.var(1, keepdim=True)


@dataclass
class ARTopK(Ratio, Compressor):
    """All-reduce friendly top-k: a worker b tells all where its k largest entries are, which all then average.

        I = the k indices with the largest |e_b|, broadcast;   C(e_i) = e_i on I, 0 elsewhere;
        mean = 1/n sum_i C(e_i), by an all-reduce of k values;   k = max(1, floor(keep P))

    Tyagi & Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE BigData
    2023. In place of the n different sets of places of top-k, whose union has to be gathered, there is one.

    select           star: b = t mod n. var: b is the worker whose gradient (without residual) is largest, smoothed over
                     the last steps; the lowest number on ties
    var_stat         what is compared: the norm as in the authors' code, or the variance of the entries, as the name
                     and the slides have it
    window_steps     W, over which it is smoothed: weights (1 - smoothing)^j for the j-th newest value, normalised
    smoothing        as in the authors' code, 0.001: next to none
    wait_for_window  take worker 0 until there are W values, as the authors' code does; else smooth those there are

    Bytes: k index_bytes broadcast, 4 k all-reduced for float32 rows; var: a number of each worker more, all-gathered.

    Departures from the authors' code: residuals start at 0 instead of uninitialised; indices of 4 bytes, with which the
    paper's costs are right; all gather what is to be smoothed, which makes no difference.
    """

    name: str = "artopk"
    index_bytes: int = setting(4, choices=(4, 8))
    select: Select = Select.star
    var_stat: Statistic = setting(Statistic.norm, when="compares")
    window_steps: int = setting(25, at_least=1, when="compares")
    smoothing: float = setting(0.001, at_least=0, below=1, when="compares")
    wait_for_window: bool = setting(False, when="compares")

    @property
    def compares(self) -> bool:
        """Whether the worker is chosen by its gradient."""
        return self.select is Select.var

    def bound(self, layout: RowLayout, seed: int, steps_per_epoch: float = 1.0) -> Self:
        """See `Compressor.bound`. Raises ConfigError where indices of 4 bytes are too short."""
        check_indices(layout, self.index_bytes)
        return super().bound(layout, seed, steps_per_epoch)

    def memory(self, x: Tensor, num_workers: int) -> Tensor:
        """With select=var the last W values of each worker, the newest first: [W n]."""
        return x.new_zeros(self.window_steps * num_workers if self.select is Select.var else 0)

    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """A broadcast of k indices and an all-reduce of k numbers; with select=var all gather a number before."""
        k = self.count(self.layout.num_coordinates, step)
        told_s = prices.allgather_s(dtype.itemsize) if self.select is Select.var else 0.0
        return told_s + prices.broadcast_s(k * self.index_bytes) + prices.mean_s(k * dtype.itemsize)

    def combine(self, g: Tensor, r: Tensor, memory: Tensor, net: Collectives, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """See `Compressor.combine` and the formula."""
        import torch

        b = t % net.n if self.select is Select.star else self._largest(g, memory, net, t)
        e, k = self.error_fed(g, r), self.count(g.shape[1], t)
        places = self._broadcast(e, k, b, net, t)
        values = self.scratch.take("values", len(e) * k, e).view(len(e), k)
        torch.index_select(e, 1, places, out=values)
        self._measure(e, values, t)
        if self.error_feedback:
            e.index_fill_(1, places, 0)
        mean = net.mean(values)[0]
        g[0].zero_().index_copy_(0, places, mean)
        g[1:] = g[0]
        return g, r, memory

    def _broadcast(self, e: Tensor, k: int, b: int, net: Collectives, t: int) -> Tensor:
        """The places of worker b's k largest entries, ascending, on every process: int64 [k]."""
        import torch

        from decentral.compression.arithmetic.selection import largest
        from decentral.network.payload import Payload

        kind, own = index_type(self.index_bytes), None
        if b in net.workers:
            own = Payload({"indices": largest(e[b - net.workers.start], k, self.scratch).to(kind)})
        told = net.broadcast(own, b, {"indices": (kind, k)}).tensors["indices"]
        return told.to(torch.int64)

    def _largest(self, g: Tensor, memory: Tensor, net: Collectives, t: int) -> int:
        """The worker whose gradient is largest, smoothed."""
        import torch

        from decentral.network.payload import Payload

        told = net.allgather([Payload({"size": row}) for row in self.var_stat.of(g)], {"size": (g.dtype, 1)})
        values = memory.view(self.window_steps, net.n)
        values[1:] = values[:-1].clone()
        values[0] = torch.cat([each.tensors["size"] for each in told])
        known = min(t + 1, self.window_steps)
        if self.wait_for_window and known < self.window_steps:
            return 0
        weights = (1 - self.smoothing) ** torch.arange(1, known + 1, dtype=torch.float64, device=g.device)
        return int((weights @ values[:known].double()).argmax())

    def _measure(self, e: Tensor, values: Tensor, t: int) -> None:
        if self.measures(t):
            for place, (row, sent) in enumerate(zip(e, values, strict=True)):
                total, square = float(row.dot(row)), float(sent.dot(sent))
                self.read(place, total, square, max(0.0, total - square), len(sent) / len(row))
