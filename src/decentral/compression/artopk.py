"""AR-Topk, which uses one worker's top-k indices for all, and a choice between it and gathered top-k by cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from decentral.compression.compressor import Compressor
from decentral.compression.ratio import Ratio
from decentral.compression.rows import payload_of
from decentral.compression.selection import largest
from decentral.compression.sparse import TopK, check_indices, index_type
from decentral.host.machine import Lazy
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.cluster.links import Prices
    from decentral.compression.rows import RowLayout
    from decentral.network.network import Network
else:
    torch = Lazy("torch")


class Select(Enum):
    """The worker that selects the indices: each in turn, or the one with the largest gradient."""

    star = "star"
    var = "var"


class Statistic(Enum):
    """The size of a gradient: its norm, or the variance of its entries."""

    norm = "norm"
    variance = "variance"

    def of(self, g: Tensor) -> Tensor:
        """Return the sizes [k, 1] of gradients g [k, P]."""
        return torch.linalg.vector_norm(g, dim=1, keepdim=True) if self is Statistic.norm else g.var(1, keepdim=True)


@dataclass
class ARTopK(Ratio, Compressor):
    """All-reduce-friendly top-k: a worker b broadcasts the indices of its k largest entries, which all workers average.

        I = the k indices with the largest |e_b|, broadcast;   C(e_i) = e_i on I, 0 elsewhere;
        mean = 1/n sum_i C(e_i), by an all-reduce of k values;   k = max(1, floor(keep P))

    Tyagi & Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE BigData
    2023. One common index set replaces the n sets of top-k, whose union requires a gather.

    select           star: b = t mod n. var: b is the worker whose gradient (without residual) is largest, smoothed over
                     the last steps; the lowest number on ties
    var_stat         quantity to compare: the norm, as in the authors' code, or the variance of the entries, as the name
                     and the slides say
    window_steps     W, over which it is smoothed: weights (1 - smoothing)^j for the j-th newest value, normalized
    smoothing        as in the authors' code, 0.001: almost none
    wait_for_window  take worker 0 until there are W values, as the authors' code does; else smooth the values so far

    Bytes: k index_bytes broadcast, 4 k all-reduced for float32 rows; var: also one number per worker, all-gathered.

    Departures from the authors' code: residuals start at 0 instead of uninitialized; indices have 4 bytes, which match
    the paper's costs; the values to smooth are all-gathered, which gives the same result.
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
        """Return whether the worker is selected by its gradient."""
        return self.select is Select.var

    def bound(self, layout: RowLayout, seed: int, steps_per_epoch: float = 1.0) -> Self:
        """See `Compressor.bound`. Raise ConfigError if 4-byte indices are too short."""
        check_indices(layout, self.index_bytes)
        return super().bound(layout, seed, steps_per_epoch)

    def memory(self, x: Tensor, num_workers: int) -> Tensor:
        """Return the last W values of each worker for select=var, newest first: [W n]."""
        return x.new_zeros(self.window_steps * num_workers if self.select is Select.var else 0)

    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """Return the time of a broadcast of k indices and an all-reduce of k numbers; select=var adds an all-gather."""
        k = self.count(self.layout.num_coordinates, step)
        told_s = prices.allgather_s(dtype.itemsize) if self.select is Select.var else 0.0
        return told_s + prices.broadcast_s(k * self.index_bytes) + prices.mean_s(k * dtype.itemsize)

    def combine(self, g: Tensor, r: Tensor, memory: Tensor, net: Network, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """See `Compressor.combine` and the class formula."""
        b = t % net.n if self.select is Select.star else self._largest(g, memory, net, t)
        e, k = self.error_fed(g, r), self.count(g.shape[1], t)
        kind, own = index_type(self.index_bytes), None
        if b in net.workers:
            own = payload_of(indices=largest(e[b - net.workers.start], k, self.scratch).to(kind))
        places = net.broadcast(own, b, {"indices": (kind, k)}).tensors["indices"].to(torch.int64)  # ascending
        values = self.scratch.take("values", len(e) * k, e).view(len(e), k)
        torch.index_select(e, 1, places, out=values)
        self._measure(e, values, t)
        if self.error_feedback:
            e.index_fill_(1, places, 0)
        mean = net.mean(values)[0]
        g[0].zero_().index_copy_(0, places, mean)
        g[1:] = g[0]
        return g, r, memory

    def _largest(self, g: Tensor, memory: Tensor, net: Network, t: int) -> int:
        """Return the worker with the largest smoothed gradient."""
        told = net.allgather([payload_of(size=row) for row in self.var_stat.of(g)], {"size": (g.dtype, 1)})
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


class _Ways:
    """The alternatives."""

    ways: tuple[Ratio, ...]
    """Bound compressors: AR-Topk, then gathered top-k."""


@dataclass
class Flexible(Ratio, _Ways):
    """The cheaper of AR-Topk (`artopk`, select=star) and gathered top-k (`topk`) in every step, by current link costs.

    AR-Topk is used on a tie. Both share the residuals.

    Tyagi & Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE BigData
    2023. With alpha, 1/beta of a link, Q bytes of values and as many of indices, and n workers:

        AR-Topk   broadcast(Q) + all-reduce(Q) = 3 alpha log2 n + 3 Q beta log2 n   with a tree all-reduce
        gathered  all-gather(2 Q) = alpha log2 n + 2 (n - 1) Q beta

    The all-reduce is that of `cluster.links.collective`; the paper chooses as ring_or_tree. The choice determines the
    indices sent, so iterates depend on the network. The run records the count and time of each collective.

    Departures from the authors' code: those of `artopk` and `topk`; switching the collective restarts nothing.
    """

    name: str = "flexible"
    index_bytes: int = setting(4, choices=(4, 8))
    chooses: ClassVar[bool] = True

    def bound(self, layout: RowLayout, seed: int, steps_per_epoch: float = 1.0) -> Self:
        """See `Compressor.bound`."""
        bound = super().bound(layout, seed, steps_per_epoch)
        names = ("error_feedback", "keep", "warmup_epochs", "index_bytes")
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        bound.ways = tuple(way(**settings).bound(layout, seed, steps_per_epoch) for way in (ARTopK, TopK))
        return bound

    def compression_stats(self, x: Tensor) -> Tensor:
        """See `Compressor.compression_stats`; the chosen compressor writes them."""
        found = super().compression_stats(x)
        for way in self.ways:
            way._compression_stats = found
        return found

    def send_share(self, keep: float) -> None:
        """See `Ratio.send_share`."""
        super().send_share(keep)
        for way in self.ways:
            way.send_share(keep)

    def measure_always(self, always: bool) -> None:
        """See `Compressor.measure_always`."""
        for way in self.ways:
            way.measure_always(always)

    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """Return the time of the cheaper one."""
        return self._cheaper(prices, step, dtype).planned_s(prices, step, dtype)

    def combine(self, g: Tensor, r: Tensor, memory: Tensor, net: Network, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """Apply the cheaper one; AR-Topk if costs are unknown."""
        way = self.ways[0] if net.prices is None else self._cheaper(net.prices, t, g.dtype)
        return way.combine(g, r, memory, net, t)

    def _cheaper(self, prices: Prices, step: int, dtype: torch.dtype) -> Ratio:
        return min(self.ways, key=lambda way: way.planned_s(prices, step, dtype))
