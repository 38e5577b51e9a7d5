"""AR-Topk or gathered top-k, whichever is cheaper now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from decentral.compression.artopk import ARTopK
from decentral.compression.compressor import Collectives
from decentral.compression.ratio import Ratio
from decentral.compression.topk import TopK
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.cluster.links import Prices
    from decentral.compression.row_layout import RowLayout


class _Ways:
    """What is chosen from."""

    ways: tuple[Ratio, ...]
    """Bound: AR-Topk, then gathered top-k."""


@dataclass
class Flexible(Ratio, _Ways):
    """In every step the cheaper one of AR-Topk (`artopk`, select=star) and of gathered top-k (`topk`), by what links
    cost in it, AR-Topk on a tie. Residuals go on from one to the other.

    Tyagi & Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE BigData
    2023. With alpha, 1/beta of a link, Q bytes of values and as many of indices, and n workers:

        AR-Topk   broadcast(Q) + all-reduce(Q) = 3 alpha log2 n + 3 Q beta log2 n   where the all-reduce is a tree
        gathered  all-gather(2 Q) = alpha log2 n + 2 (n - 1) Q beta

    The all-reduce is that of `cluster.links.collective`; ring_or_tree is what the paper chooses from. Which places are
    sent depends on what is chosen, so that iterates depend on the network. The run records how often each collective
    was carried out, and what it took.

    Departures from the authors' code: those of `artopk` and `topk`; nothing is restarted for another collective.
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
        """See `Compressor.compression_stats`: whichever is taken writes them."""
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
        """What the cheaper one takes."""
        return self._cheaper(prices, step, dtype).planned_s(prices, step, dtype)

    def combine(self, g: Tensor, r: Tensor, memory: Tensor, net: Collectives, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """What the cheaper one does; AR-Topk where nobody knows costs."""
        way = self.ways[0] if net.prices is None else self._cheaper(net.prices, t, g.dtype)
        return way.combine(g, r, memory, net, t)

    def _cheaper(self, prices: Prices, step: int, dtype: torch.dtype) -> Ratio:
        return min(self.ways, key=lambda way: way.planned_s(prices, step, dtype))
