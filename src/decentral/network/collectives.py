"""All-reduce by messages between processes: the algorithms, and which of them `network.collective` stands for."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
        expected = [Expected(peer, _bytes_of(place), place=as_bytes(place)) for place, peer in receives]
        for came, (place, _) in zip(self._exchange(sends, expected, unchanged=True), receives, strict=True):
            if came.data_ptr() != place.data_ptr():
                place.copy_(came.view(place.dtype))

    def add(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        """Send parts, and add what comes to others, in their order: the same ones, if they have gone by then."""
        same = any(part.data_ptr() == place.data_ptr() for part, _ in sends for place, _ in receives)
        expected = [Expected(peer, _bytes_of(place)) for place, peer in receives]
        for came, (place, _) in zip(self._exchange(sends, expected, unchanged=not same), receives, strict=True):
            place.add_(came.view(place.dtype))

    def _exchange(self, sends: Sequence[Send], expected: Sequence[Expected], unchanged: bool) -> list[Tensor]:
        buffers = [Buffer([values], peers) for values, peers in sends if len(values)]
        for buffer in buffers:
            self.transport.count(len(buffer.peers), len(buffer.peers) * buffer.num_bytes)
        return self.transport.exchange(buffers, expected, self.device, unchanged)


def _bytes_of(part: Tensor) -> int:
    return part.numel() * part.element_size()


class AllReduce(ABC):
    """An algorithm. The sum is the same on all processes, bit for bit; its order of addition is the algorithm's."""

    def total(self, x: Tensor, factor: float, peers: Peers) -> None:
        """x <- factor times the sum over processes of their x: one contiguous row [P], in place; on all at once."""
        if peers.size == 1:
            x.mul_(factor)
            return
        peers.transport.reserve(self.largest(len(x), peers.size) * x.element_size())
        self._total(x, factor, peers)
        peers.transport.done()

    def largest(self, num_numbers: int, size: int) -> int:
        """How many numbers a process sends at once, at most."""
        return num_numbers

    @abstractmethod
    def _total(self, x: Tensor, factor: float, peers: Peers) -> None: ...


class Ring(AllReduce):
    """The row in P shares: every one goes around, and is added to, in P - 1 steps, and in as many it gets to all.

    Everybody sends and receives 2 (P - 1)/P rows.
    """

    def largest(self, num_numbers: int, size: int) -> int:
        """See `AllReduce`."""
        return -(-num_numbers // size)

    def _total(self, x: Tensor, factor: float, peers: Peers) -> None:
        rank, size = peers.rank, peers.size
        following, previous = (rank + 1) % size, (rank - 1) % size
        shares = [x[a:b] for a, b in pairwise([len(x) * p // size for p in range(size + 1)])]
        for step in range(size - 1):
            peers.add([(shares[(rank - step) % size], [following])], [(shares[(rank - step - 1) % size], previous)])
        shares[following].mul_(factor)
        for step in range(size - 1):
            peers.put([(shares[(rank + 1 - step) % size], [following])], [(shares[(rank - step) % size], previous)])


class Tree(AllReduce):
    """Whole rows up a binomial tree to process 0, which has the sum then, and down again."""

    def _total(self, x: Tensor, factor: float, peers: Peers) -> None:
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


class Star(AllReduce):
    """Whole rows to process 0, which sends their sum back to everybody."""

    def _total(self, x: Tensor, factor: float, peers: Peers) -> None:
        others = list(range(1, peers.size))
        if peers.rank:
            peers.put([(x, [0])], [])
            peers.put([], [(x, 0)])
        else:
            peers.add([], [(x, peer) for peer in others])
            peers.put([(x.mul_(factor), others)], [])


class _ByHalves(AllReduce):
    """Algorithms for 2^d processes. Of more, so many give their row to another one before, and get the sum after."""

    def _total(self, x: Tensor, factor: float, peers: Peers) -> None:
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
        self._among(x, factor, peers, ranks)
        if rank < paired:
            peers.put([(x, [partner])], [])

    @abstractmethod
    def _among(self, x: Tensor, factor: float, peers: Peers, ranks: Sequence[int]) -> None:
        """The sum of those of `ranks`, 2^d of which this is one."""


class RecursiveDoubling(_ByHalves):
    """In each of log2 P phases processes exchange whole rows in pairs, with those 1, 2, 4, ... from them."""

    def _among(self, x: Tensor, factor: float, peers: Peers, ranks: Sequence[int]) -> None:
        place, distance = ranks.index(peers.rank), 1
        while distance < len(ranks):
            partner = ranks[place ^ distance]
            peers.add([(x, [partner])], [(x, partner)])
            distance *= 2
        x.mul_(factor)


class Rabenseifner(_ByHalves):
    """Pairs exchange halves of what they have, then halves of these, ..., until everybody has the sum of a P-th of the
    row; then the same way back. 2 log2 P phases, 2 (P - 1)/P rows."""

    def _among(self, x: Tensor, factor: float, peers: Peers, ranks: Sequence[int]) -> None:
        place, distance = ranks.index(peers.rank), len(ranks) // 2
        ours, steps = x, []
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


Fastest = Callable[[int], CollectiveChoice]
"""The collective that a model of the network says is fastest for rows of so many bytes."""

_ALGORITHMS: dict[CollectiveChoice, AllReduce] = {
    CollectiveChoice.ring: Ring(),
    CollectiveChoice.tree: Tree(),
    CollectiveChoice.recursive_doubling: RecursiveDoubling(),
    CollectiveChoice.rabenseifner: Rabenseifner(),
    CollectiveChoice.star: Star(),
}


def chosen(choice: CollectiveChoice, num_bytes: int, fastest: Fastest | None) -> AllReduce | None:
    """The algorithm for rows of so many bytes; None: what the transport has for it.

    fastest   decides for `auto`, all processes alike; without it that is the transport's own
    """
    if choice is CollectiveChoice.auto and fastest is not None:
        choice = fastest(num_bytes)
    return _ALGORITHMS.get(choice)
