"""Payloads, which replace dense rows by named tensors of varying lengths, and their communication operations.

Both rows and payloads are sent over the edges that `EdgeLayout` numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.network.traffic import Traffic
from decentral.topology.delivery import Delivery, Neighbors
from decentral.topology.rounds import RelayEdges, Rounds

Sizes = dict[str, tuple[torch.dtype, int]]
"""Name -> type and length of each tensor of a payload, in order."""

_LENGTH_BYTES = 8


class Payload(NamedTuple):
    """Named one-dimensional tensors, whose lengths may change from step to step: values, indices, scales."""

    tensors: dict[str, Tensor]

    @property
    def num_bytes(self) -> int:
        """The size of its numbers in bytes."""
        return sum(each.nbytes for each in self.tensors.values())

    @property
    def sizes(self) -> Sizes:
        """Return types and lengths of its tensors."""
        return {name: (each.dtype, each.numel()) for name, each in self.tensors.items()}

    @property
    def parts(self) -> list[Tensor]:
        """Return its tensors in sending order: wide types first, so that all are aligned."""
        return [self.tensors[name] for name in _order(self.sizes)]


class Known(NamedTuple):
    """Types and sizes of the payloads of all workers, known to all processes."""

    each: Sequence[Sizes]
    num_bytes: np.ndarray  # of each payload: int64 [n]
    length_bytes: int = 0  # added to each message for its lengths, unless they are known


def bytes_of(sizes: Sizes) -> int:
    """Return the size of such a payload in bytes."""
    return sum(length * dtype.itemsize for dtype, length in sizes.values())


def unpacked(flat: Tensor, sizes: Sizes) -> Payload:
    """Return the payload whose `parts` are concatenated in `flat`, uint8 [bytes_of(sizes)], as views of it."""
    found, start = {}, 0
    for name in _order(sizes):
        dtype, length = sizes[name]
        end = start + length * dtype.itemsize
        found[name], start = flat[start:end].view(dtype), end
    return Payload({name: found[name] for name in sizes})


def check_alike(payloads: Sequence[Payload], sizes: Sizes | None) -> None:
    """Raise ValueError before sending, unless payloads have equal names and types and match `sizes`, if given."""
    for payload in payloads:
        if any(each.dim() != 1 for each in payload.tensors.values()):
            raise ValueError("the tensors of a payload have one dimension")
        if sizes is not None and (payload.sizes != sizes or list(payload.sizes) != list(sizes)):
            raise ValueError(f"a payload is {payload.sizes}, but all were said to be {sizes}")
    if len({tuple((name, each.dtype) for name, each in payload.tensors.items()) for payload in payloads}) > 1:
        raise ValueError("the payloads of a verb have tensors of the same names and types")


def _order(sizes: Sizes) -> list[str]:
    return sorted(sizes, key=lambda name: -sizes[name][0].itemsize)


Star = tuple[int, list[int]]
"""A local worker with edges, and the positions of its messages among those of a piece."""


class EdgeLayout:
    """The edges and pieces of a topology's rounds, for the workers of this process."""

    def __init__(self, rounds: Rounds, workers: range) -> None:
        self.rounds = rounds
        self.workers = workers  # the local ones
        self.n = rounds.num_workers

    def piece_widths(self, num_coordinates: int) -> list[int]:
        """Return the number of coordinates of each piece."""
        return [len(range(num_coordinates)[piece]) for piece in self.rounds.slices(num_coordinates)]

    @cached_property
    def edges(self) -> RelayEdges:
        """All edges, for relaying algorithms, whose topology was checked to be static and undirected."""
        return self.rounds.edges()

    @cached_property
    def local_edges(self) -> range:
        """The edges into local workers: consecutive in the order of `RelayEdges`."""
        first, last = np.searchsorted(self.edges.dst, [self.workers.start, self.workers.stop])
        return range(int(first), int(last))

    @cached_property
    def stars(self) -> list[tuple[list[int], list[Star]]]:
        """Stars of each piece: its rows of m, and for each local worker with edges its messages' positions."""
        local = slice(self.local_edges.start, self.local_edges.stop)
        found = []
        for h in range(self.rounds.num_pieces):
            rows = np.flatnonzero(self.edges.piece[local] == h)
            receivers, first = np.unique(self.edges.dst[local][rows] - self.workers.start, return_index=True)
            bounds = [*first.tolist(), len(rows)]
            stars = [(i, list(range(*bounds[place : place + 2]))) for place, i in enumerate(receivers.tolist())]
            found.append((rows.tolist(), stars))
        return found

    @cached_property
    def _local_nodes(self) -> Tensor:
        """Receiver and piece of each local edge: local worker * d + piece."""
        local = slice(self.local_edges.start, self.local_edges.stop)
        d = self.rounds.num_pieces
        return torch.from_numpy((self.edges.dst[local] - self.workers.start) * d + self.edges.piece[local])

    @cached_property
    def _edge_tensors(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(getattr(self.edges, name)) for name in ("src", "dst", "piece", "reverse")}


class PayloadVerbs(EdgeLayout, ABC):
    """Communication operations on payloads, which have tensors of the same names and types on all workers.

    If `sizes` describes every payload, only numbers are sent. None: lengths depend on the data, may differ between
    workers, and are sent, too: 8 bytes for each tensor in each message. Both are counted. (Between processes all
    lengths go to all processes, so that each knows what was sent and how long it took. Lengths sent to processes that
    do not receive the payload are not counted.)

    Results are valid until the next of these operations and must not be written: they may belong to the sender.
    """

    delivery: Delivery
    traffic: Traffic

    def allgather(self, payloads: Sequence[Payload], sizes: Sizes | None = None) -> list[Payload]:
        """Return the payloads of all n workers, by number, from those of the k local ones. Each is sent n - 1 times."""
        known = self._known(payloads, sizes)
        num_bytes = self._told(known)
        self.traffic.count_senders(np.full(self.n, self.n - 1), num_bytes)
        with self.traffic.collective("allgather", float(num_bytes.max())):
            return self._allgather(payloads, known)

    def broadcast(self, payload: Payload | None, root: int, sizes: Sizes) -> Payload:
        """Return worker `root`'s payload on every process; the process that hosts it provides it, others are ignored.

        It is sent n - 1 times.
        """
        ours = payload if root in self.workers else None
        if root in self.workers:
            if ours is None:
                raise ValueError(f"worker {root} is here, and has no payload to broadcast")
            check_alike([ours], sizes)
        self.traffic.count(self.n - 1, self._bytes_of(sizes))
        with self.traffic.collective("broadcast", self._bytes_of(sizes)):
            return self._broadcast(ours, root, sizes)

    def swap(self, payloads: Sequence[Payload], round: int, sizes: Sizes | None = None) -> list[dict[int, Payload]]:
        """Send every worker's payload to its out-neighbors of this round: W_ij != 0, in any piece.

        Takes the payloads of the k local workers and returns for each {j: the payload of j}, j ascending, without lost
        ones. Each is sent once over every edge.
        """
        known, neighbors = self._known(payloads, sizes), self.delivery.neighbors(round)
        num_bytes = self._told(known)
        self.traffic.count_senders(neighbors.num_sent, num_bytes)
        self.traffic.begin(neighbors, num_bytes)()
        return self._swap(payloads, neighbors, known)

    def relay_payloads(
        self, payloads: Sequence[Payload], round: int, sizes: Sequence[Sizes], later: bool = False
    ) -> list[Payload | None]:
        """Send a payload over every relay edge; those of piece h have sizes[h]. `later`: see `Network.relay`.

        payloads[e] goes back over the local edge e = (i -> j), from j to i. Returns, for each local edge, the payload
        received over it, or None if it was lost.
        """
        if len(payloads) != len(self.local_edges) or len(sizes) != self.rounds.num_pieces:
            raise ValueError(
                f"{len(payloads)} payloads of {len(sizes)} sizes were given for {len(self.local_edges)} local edges of "
                f"{self.rounds.num_pieces} pieces"
            )
        for h, (edges, _) in enumerate(self.stars):
            check_alike([payloads[row] for row in edges], sizes[h])
        self._send_over_edges([self._bytes_of(each) for each in sizes], later)
        came: list[Payload | None] = [*self._relay_payloads(payloads, sizes)]
        for e in self.delivery.undelivered(self.edges, round).tolist():
            if e in self.local_edges:
                came[e - self.local_edges.start] = None
        return came

    def _send_over_edges(self, num_bytes: Sequence[float], later: bool) -> None:
        """Count messages of these sizes, per piece, over every edge between present workers."""
        edges = self.delivery.carried(self.edges)
        self.traffic.count_pieces(np.bincount(edges.piece, minlength=self.rounds.num_pieces).tolist(), num_bytes)
        self.traffic.begin(edges, num_bytes, later=later)()

    def _known(self, payloads: Sequence[Payload], sizes: Sizes | None) -> Known:
        """Return types and sizes of the payloads of all n workers."""
        if len(payloads) != len(self.workers):
            raise ValueError(f"{len(payloads)} payloads were given for {len(self.workers)} local workers")
        check_alike(payloads, sizes)
        if sizes is not None:
            return Known([sizes] * self.n, np.full(self.n, bytes_of(sizes)))
        each = self._everybodys_sizes(payloads)
        num_bytes = np.array([bytes_of(sizes) for sizes in each], dtype=np.int64)
        return Known(each, num_bytes, _LENGTH_BYTES * len(each[0]))

    def _bytes_of(self, sizes: Sizes) -> float:
        """Return the bytes of a payload, or of the payload it represents."""
        scale = self.traffic.scale
        single = 1.0 if self.traffic.stands_for else scale
        return sum(length * dtype.itemsize * (scale if length > 1 else single) for dtype, length in sizes.values())

    def _told(self, known: Known) -> np.ndarray:
        """Return the bytes of each worker's payload [n], including sent lengths."""
        plain = self.traffic.scale == 1
        return (known.num_bytes if plain else np.array(list(map(self._bytes_of, known.each)))) + known.length_bytes

    # -- what an implementation does -----------------------------------------------------------------------------------

    @abstractmethod
    def _everybodys_sizes(self, payloads: Sequence[Payload]) -> list[Sizes]:
        """Return types and lengths of the payloads of all n workers."""

    @abstractmethod
    def _allgather(self, payloads: Sequence[Payload], known: Known) -> list[Payload]:
        """Return the payloads of all workers."""

    @abstractmethod
    def _broadcast(self, payload: Payload | None, root: int, sizes: Sizes) -> Payload:
        """Return worker `root`'s payload."""

    @abstractmethod
    def _swap(self, payloads: Sequence[Payload], neighbors: Neighbors, known: Known) -> list[dict[int, Payload]]:
        """Return, for each local worker, the payloads of its in-neighbors."""

    @abstractmethod
    def _relay_payloads(self, payloads: Sequence[Payload], sizes: Sequence[Sizes]) -> list[Payload]:
        """Return the payloads received over the local edges."""
