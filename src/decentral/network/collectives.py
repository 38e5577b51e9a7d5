"""All-reduce by messages between processes: the algorithms, and which of them `network.collective` stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from decentral.network.settings import CollectiveChoice
from decentral.network.transports.posting import as_bytes
from decentral.network.transports.transport import CPU, Buffer, Expected, Transport, binomial_tree

Send = tuple[Tensor, Sequence[int]]
"""Part of a row, and the processes that it goes to."""
Receive = tuple[Tensor, int]
"""Part of a row, and the process whose part it meets."""


class Peers(NamedTuple):
    """Process `rank` of `size`, who send each other messages through a transport. Empty ones do not travel."""

    transport: Transport
    rank: int
    size: int
    device: torch.device = CPU

    def put(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        """Send parts, and put what comes in the place of others. What is sent changes by what comes of it at most."""
        expected = [Expected(peer, place.nbytes, place=as_bytes(place)) for place, peer in receives]
        for came, (place, _) in zip(self._exchange(sends, expected, unchanged=True), receives, strict=True):
            if came.data_ptr() != place.data_ptr():
                place.copy_(came.view(place.dtype))

    def add(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        """Send parts, and add what comes to others, in their order: the same ones, if they have gone by then."""
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
"""An algorithm: x <- factor times the sum over processes of their x, one contiguous row [P], in place; on all at once.
The sum is the same on all processes, bit for bit; its order of addition is the algorithm's."""


def ring(x: Tensor, factor: float, peers: Peers) -> None:
    """The row in P shares: every one goes around, and is added to, in P - 1 steps, and in as many it gets to all.

    Everybody sends and receives 2 (P - 1)/P rows.
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
    """Whole rows up a binomial tree to process 0, which has the sum then, and down again."""
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
    """Whole rows to process 0, which sends their sum back to everybody."""
    others = list(range(1, peers.size))
    if peers.rank:
        peers.put([(x, [0])], [])
        peers.put([], [(x, 0)])
    else:
        peers.add([], [(x, peer) for peer in others])
        peers.put([(x.mul_(factor), others)], [])


def recursive_doubling(x: Tensor, factor: float, peers: Peers) -> None:
    """In each of log2 P phases processes exchange whole rows in pairs, with those 1, 2, 4, ... from them."""

    def among(place: int, ranks: Sequence[int]) -> None:
        distance = 1
        while distance < len(ranks):
            partner = ranks[place ^ distance]
            peers.add([(x, [partner])], [(x, partner)])
            distance *= 2
        x.mul_(factor)

    _by_halves(x, peers, among)


def rabenseifner(x: Tensor, factor: float, peers: Peers) -> None:
    """Pairs exchange halves of what they have, then halves of these, ..., until everybody has the sum of a P-th of the
    row; then the same way back. 2 log2 P phases, 2 (P - 1)/P rows."""

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
    """For algorithms `among` 2^d processes: (place of this one among them, all of them). Of more, so many give their
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
"""The collective that a model of the network says is fastest for rows of so many bytes."""

_ALGORITHMS: dict[CollectiveChoice, AllReduce] = {
    CollectiveChoice.ring: ring,
    CollectiveChoice.tree: tree,
    CollectiveChoice.recursive_doubling: recursive_doubling,
    CollectiveChoice.rabenseifner: rabenseifner,
    CollectiveChoice.star: star,
}


def all_reduce(choice: CollectiveChoice, x: Tensor, factor: float, peers: Peers) -> bool:
    """Carry out an algorithm, see `AllReduce`. False if nothing was done: the choice is what the transport has."""
    if (algorithm := _ALGORITHMS.get(choice)) is None:
        return False
    if peers.size == 1:
        x.mul_(factor)
        return True
    peers.transport.reserve(x.nbytes)
    algorithm(x, factor, peers)
    peers.transport.done()
    return True
