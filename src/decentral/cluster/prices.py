"""What collectives take, by what is known of the links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decentral.cluster.collectives import AllGather, Broadcast
from decentral.cluster.links import CollectiveName

if TYPE_CHECKING:
    from decentral.cluster.costs import LinkCosts

_ALL_GATHER, _BROADCAST = AllGather(), Broadcast()


class Prices:
    """How long n who begin together would take for something now, in seconds: n workers, or n processes."""

    def __init__(self, n: int, costs: LinkCosts, rows_each: float = 1.0) -> None:
        """`rows_each`: how many workers each of the n contributes for, where these are processes."""
        self.n, self.costs, self.rows_each = n, costs, rows_each
        self.bytes_scale = 1.0
        """How many times as large the rows are in truth as those that are exchanged."""

    def all_reduce(self, num_bytes: float) -> tuple[str, float]:
        """The same, and what `cluster.links.collective` calls what they carry out."""
        collective, seconds = self.costs.all_reduce(self.n, num_bytes * self.bytes_scale)
        return CollectiveName(type(collective)).name, seconds

    def collective(self, name: str, num_bytes: float) -> tuple[str, float]:
        """The same for an all_reduce, allgather or broadcast."""
        if name == "all_reduce":
            return self.all_reduce(num_bytes)
        return name, self.allgather_s(num_bytes) if name == "allgather" else self.broadcast_s(num_bytes)

    def mean_s(self, num_bytes: float) -> float:
        """An all-reduce of rows of so many bytes."""
        return self.costs.all_reduce_s(self.n, num_bytes * self.bytes_scale)

    def allgather_s(self, num_bytes: float) -> float:
        """An all-gather of what is so many bytes for each worker."""
        return self.costs.collective_s(_ALL_GATHER, self.n, num_bytes * self.bytes_scale * self.rows_each)

    def broadcast_s(self, num_bytes: float) -> float:
        """A broadcast of so many bytes."""
        return self.costs.collective_s(_BROADCAST, self.n, num_bytes * self.bytes_scale)
