"""All-reduce algorithms from point-to-point messages between processes, selected by `network.collective`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from decentral.network.kernels import headroom
from decentral.network.settings import CollectiveChoice
from decentral.network.transports.posting import as_bytes
from decentral.network.transports.transport import CPU, Buffer, Expected, Transport, binomial_tree

Send = tuple[Tensor, Sequence[int]]
"""Part of a row, and its destination processes."""
Receive = tuple[Tensor, int]
"""Part of a row, and the source process of the data to combine with it."""


class Peers(NamedTuple):
    """Process `rank` of `size`, with messages over a transport. Empty messages are not sent."""

    transport: Transport
    rank: int
    size: int
    device: torch.device = CPU

    def put(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        """Send parts and overwrite other parts with received data. Only data caused by a part may overwrite it."""
        expected = [Expected(peer, place.nbytes, place=as_bytes(place)) for place, peer in receives]
        for came, (place, _) in zip(self._exchange(sends, expected, unchanged=True), receives, strict=True):
            if came.data_ptr() != place.data_ptr():
                place.copy_(came.view(place.dtype))

    def add(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        """Send parts, and add received data to parts, in order; these may be the sent parts, once they are gone."""
        same = any(part.data_ptr() == place.data_ptr() for part, _ in sends for place, _ in receives)
        expected = [Expected(peer, place.nbytes) for place, peer in receives]
        for came, (place, _) in zip(self._exchange(sends, expected, unchanged=not same), receives, strict=True):
            place.add_(came.view(place.dtype))

    def _exchange(self, sends: Sequence[Send], expected: Sequence[Expected], unchanged: bool) -> list[Tensor]:
        buffers = [Buffer([values], peers) for values, peers in sends if len(values)]
        for buffer in buffers:
            self.transport.count(len(buffer.peers), len(buffer.peers) * buffer.num_bytes)
        return self.transport.exchange(buffers, expected, self.device, unchanged)


AllReduce = Callable[[Tensor, float, Peers], None]
"""An algorithm: x <- factor times the sum of x over processes, one contiguous row [P], in place; called by all at once.
The sum is bitwise equal on all processes; the algorithm determines its order."""


def ring(x: Tensor, factor: float, peers: Peers) -> None:
    """Ring all-reduce: a reduce-scatter of P shares in P - 1 steps, then an all-gather in as many.

    Every process sends and receives 2 (P - 1)/P rows.
    """
    rank, size = peers.rank, peers.size
    following, previous = (rank + 1) % size, (rank - 1) % size
    shares = [x[a:b] for a, b in pairwise([len(x) * p // size for p in range(size + 1)])]
    for step in range(size - 1):
        peers.add([(shares[(rank - step) % size], [following])], [(shares[(rank - step - 1) % size], previous)])
    shares[following].mul_(factor)
    for step in range(size - 1):
        peers.put([(shares[(rank + 1 - step) % size], [following])], [(shares[(rank - step) % size], previous)])


def tree(x: Tensor, factor: float, peers: Peers) -> None:
    """Tree all-reduce: sum whole rows up a binomial tree to process 0, then broadcast down."""
    parent, children = binomial_tree(peers.rank, peers.size, root=0)
    for child in reversed(children):
        peers.add([], [(x, child)])
    if parent is None:
        x.mul_(factor)
    else:
        peers.put([(x, [parent])], [])
        peers.put([], [(x, parent)])
    if children:
        peers.put([(x, children)], [])


def star(x: Tensor, factor: float, peers: Peers) -> None:
    """Star all-reduce: send whole rows to process 0, which returns their sum to all."""
    others = list(range(1, peers.size))
    if peers.rank:
        peers.put([(x, [0])], [])
        peers.put([], [(x, 0)])
    else:
        peers.add([], [(x, peer) for peer in others])
        peers.put([(x.mul_(factor), others)], [])


def recursive_doubling(x: Tensor, factor: float, peers: Peers) -> None:
    """Recursive doubling: in log2 P phases, processes at distance 1, 2, 4, ... exchange whole rows in pairs."""

    def among(place: int, ranks: Sequence[int]) -> None:
        distance = 1
        while distance < len(ranks):
            partner = ranks[place ^ distance]
            peers.add([(x, [partner])], [(x, partner)])
            distance *= 2
        x.mul_(factor)

    _by_halves(x, peers, among)


def rabenseifner(x: Tensor, factor: float, peers: Peers) -> None:
    """Rabenseifner's algorithm: recursive halving until every process has the sum of 1/P of the row, then recursive
    doubling. 2 log2 P phases, 2 (P - 1)/P rows."""

    def among(place: int, ranks: Sequence[int]) -> None:
        ours, steps, distance = x, [], len(ranks) // 2
        while distance:
            partner, middle = ranks[place ^ distance], len(ours) // 2
            kept, given = ours[:middle], ours[middle:]
            if place & distance:
                kept, given = given, kept
            peers.add([(given, [partner])], [(kept, partner)])
            steps.append((partner, kept, given))
            ours, distance = kept, distance // 2
        ours.mul_(factor)
        for partner, kept, given in reversed(steps):
            peers.put([(kept, [partner])], [(given, partner)])

    _by_halves(x, peers, among)


def _by_halves(x: Tensor, peers: Peers, among: Callable[[int, Sequence[int]], None]) -> None:
    """Run an algorithm `among` 2^d processes: (index of this process, all of them). The surplus processes hand their
    row to another one before, and get the sum after."""
    core = 1 << (peers.size.bit_length() - 1)
    paired = 2 * (peers.size - core)
    rank, partner = peers.rank, peers.rank ^ 1
    if rank < paired and rank % 2:
        peers.put([(x, [partner])], [])
        peers.put([], [(x, partner)])
        return
    if rank < paired:
        peers.add([], [(x, partner)])
    ranks = [*range(0, paired, 2), *range(paired, peers.size)]
    among(ranks.index(rank), ranks)
    if rank < paired:
        peers.put([(x, [partner])], [])


Fastest = Callable[[int], CollectiveChoice]
"""Number of bytes in a row -> the fastest collective according to a network model."""

_ALGORITHMS: dict[CollectiveChoice, AllReduce] = {
    CollectiveChoice.ring: ring,
    CollectiveChoice.tree: tree,
    CollectiveChoice.recursive_doubling: recursive_doubling,
    CollectiveChoice.rabenseifner: rabenseifner,
    CollectiveChoice.star: star,
}


def all_reduce(choice: CollectiveChoice, x: Tensor, factor: float, peers: Peers) -> bool:
    """Run an algorithm, see `AllReduce`. Return False, without effect, if the choice is the transport's all-reduce."""
    if (algorithm := _ALGORITHMS.get(choice)) is None:
        return False
    if peers.size == 1:
        x.mul_(factor)
        return True
    peers.transport.reserve(x.nbytes)
    down = headroom(peers.size)
    algorithm(x.mul_(down), factor / down, peers)
    peers.transport.done()
    return True
