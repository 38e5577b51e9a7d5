"""What it costs n workers to send, exchange, average and copy, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from decentral.cluster.collectives import AllGather, Broadcast
from decentral.cluster.links import CollectiveName

if TYPE_CHECKING:
    from decentral.cluster.collectives import AllReduce, Collective
    from decentral.cluster.links import OpenLinks

_ALL_GATHER, _BROADCAST = AllGather(), Broadcast()


class LinkCosts:
    """The links between n workers. Sending N bytes from i to j takes latency + N seconds_per_byte; to itself nothing.

    Scalars are computed without numpy: an event loop asks for hundreds of thousands of them.
    """

    def __init__(self, links: OpenLinks, num_workers: int) -> None:
        self.num_workers = num_workers
        self._links = links
        self._table = links.table.links if links.table is not None else {}
        self._ways = 2 if links.one_port else 1
        self._alpha, self._beta = self.slowest = self._slowest()
        alike = links.inside == links.between or links.workers_per_machine in (1, num_workers)
        self.uniform = not self._table and alike
        """Whether all links are alike."""

    def plan(self, src: np.ndarray, dst: np.ndarray) -> Exchange:
        """Exchanges along the edges src -> dst (integers [E])."""
        return Exchange(self, self._links, src, dst)

    def all_reduce_s(self, num_workers: int, num_bytes: float) -> float:
        """How long `num_workers` of the workers, who begin together, take for the mean of rows of so many bytes."""
        return self.all_reduce(num_workers, num_bytes)[1]

    def all_reduce(self, num_workers: int, num_bytes: float) -> tuple[AllReduce, float]:
        """How they carry it out, and how long they take: the fastest of `candidates`, the first one on a tie."""
        timed = ((each, self.collective_s(each, num_workers, num_bytes)) for each in self.candidates)
        return min(timed, key=lambda one: one[1])

    @property
    def candidates(self) -> tuple[AllReduce, ...]:
        """What `cluster.links.collective` leaves to choose from."""
        return self._links.collective.candidates

    def collective_s(self, collective: Collective, num_workers: int, num_bytes: float) -> float:
        """How long `num_workers` of the workers, who begin together, take for it.

        By its formula (`collectives`) with alpha the largest latency and beta the most seconds per
        byte of all links between the n workers: the slowest link decides in every phase. Through one port what is
        sent and received at the same time takes twice as long. Where a machine's workers share their way out, L that
        send at the same time are L times as slow on it.
        """
        if num_workers < 2:
            return 0.0
        beta = self._beta
        if self._links.shared and self.num_workers > self._links.workers_per_machine:
            flows = self._links.workers_per_machine if collective.all_at_once else 1
            beta = max(beta, flows * self._links.shared)
        ways = self._ways if collective.both_ways else 1
        return collective.seconds(num_workers, num_bytes, self._alpha, ways * beta, self._links.log2)

    def fastest_all_reduce(self, num_workers: int, num_bytes: float) -> str:
        """The name of the collective that takes least for it; on a tie the first one of `CollectiveName`.

        Only of those that consist of messages between two, which processes can choose from.
        """
        choices = [each for each in CollectiveName if each.value.of_messages]
        named = {each.name: self.collective_s(each.value(), num_workers, num_bytes) for each in choices}
        return min(named, key=named.__getitem__)

    def pair_s(self, i: int, j: int, num_bytes: float) -> float:
        """How long i and j take to exchange so many bytes with each other: latency + N seconds_per_byte of the slower
        direction; through one port latency + the bytes of both."""
        if self.uniform and i != j:
            return self._alpha + num_bytes * self._ways * self._beta
        there, back = self._link(i, j), self._link(j, i)
        per_byte = there[1] + back[1] if self._ways == 2 else max(there[1], back[1])
        return max(there[0], back[0]) + num_bytes * per_byte

    def message_s(self, i: int, j: int, num_bytes: float) -> float:
        """How long one message from i to j is on its way."""
        if self.uniform and i != j:
            return self._alpha + num_bytes * self._beta
        latency, per_byte = self._link(i, j)
        return latency + num_bytes * per_byte

    def hop_s(self, i: int, j: int) -> float:
        """How long a message from i to j takes that has next to no bytes: the latency."""
        return self._alpha if self.uniform and i != j else self._link(i, j)[0]

    def copy_s(self, num_bytes: float) -> float:
        """How long a worker copies so many bytes within its memory."""
        return num_bytes * self._links.copy

    def _link(self, i: int, j: int) -> tuple[float, float]:
        """(latency, seconds per byte) from i to j."""
        if i == j:
            return 0.0, 0.0
        if self._table and (own := self._table.get(i * self.num_workers + j)) is not None:
            return own
        L = self._links.workers_per_machine
        return self._links.inside if L > 1 and i // L == j // L else self._links.between

    def of(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Latencies and seconds per byte of the links src -> dst (integers, any shape): float64."""
        src, dst = np.broadcast_arrays(np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64))
        L = self._links.workers_per_machine
        same = src // L == dst // L
        latency, per_byte = (
            np.where(same, own, other) for own, other in zip(self._links.inside, self._links.between, strict=True)
        )
        if self._links.table is not None:
            self._links.table.put(src, dst, latency, per_byte)
        itself = src == dst
        latency[itself] = per_byte[itself] = 0.0
        return latency, per_byte

    def _slowest(self) -> tuple[float, float]:
        """The largest latency and the most seconds per byte of all links."""
        n, L = self.num_workers, self._links.workers_per_machine
        on_each = [min(L, n - first) for first in range(0, n, L)]
        inside = sum(workers * (workers - 1) for workers in on_each)
        own = sum(key // n // L == key % n // L for key in self._table)
        tiers = [self._links.inside] * (own < inside)
        tiers += [self._links.between] * (len(self._table) - own < n * (n - 1) - inside)
        found = [*tiers, *self._table.values()] or [(0.0, 0.0)]
        return max(latency for latency, _ in found), max(per_byte for _, per_byte in found)


class Exchange:
    """Messages along the edges src -> dst, all of which may be sent at the same time."""

    def __init__(self, costs: LinkCosts, links: OpenLinks, src: np.ndarray, dst: np.ndarray) -> None:
        src, dst = np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64)
        self._order = None if np.all(dst[1:] >= dst[:-1]) else np.argsort(dst, kind="stable")
        if self._order is not None:
            src, dst = src[self._order], dst[self._order]
        self.num_workers, self._src, self._dst = costs.num_workers, src, dst
        self._latency, self._per_byte = costs.of(src, dst)
        self._starts = np.flatnonzero(np.diff(dst, prepend=-1)) if len(dst) else np.empty(0, dtype=np.int64)
        self._one_port = links.one_port
        self._shared, self._per_machine = links.shared, links.workers_per_machine
        machine = src // self._per_machine, dst // self._per_machine
        self._crossing = machine[0] != machine[1]

    def ready(self, now: np.ndarray, num_bytes: float | np.ndarray) -> np.ndarray:
        """When each worker has sent and received its messages, float64 [n], if it sends at its own time now_i:

            max(now_i, max over j that i hears of (now_j + latency_ij)) + transfer_i

        transfer_i: the messages of a worker go through its port one after the other. Duplex: the larger one of the
        sums of num_bytes seconds_per_byte over those that it receives and those that it sends; one port: both sums.
        Where a machine's workers share their way out, at least the bytes that cross the machine's border (the larger
        one of both directions, or with one port their sum) at that bandwidth, for all who have a part in it.
        Workers without edges are ready at once.

        num_bytes   of each message: a number, or float64 [E] in the order in which the edges were given
        """
        ready = np.array(now, dtype=np.float64)
        if not len(self._src):
            return ready
        each = np.broadcast_to(np.asarray(num_bytes, dtype=np.float64), self._src.shape)
        if self._order is not None:
            each = each[self._order]
        heard = np.maximum.reduceat(ready[self._src] + self._latency, self._starts)
        receivers = self._dst[self._starts]
        ready[receivers] = np.maximum(ready[receivers], heard)
        seconds = each * self._per_byte
        received, sent = self._sums(seconds, self._dst), self._sums(seconds, self._src)
        transfer = received + sent if self._one_port else np.maximum(received, sent)
        if self._shared:
            transfer = np.maximum(transfer, self._border(each))
        return ready + transfer

    def _border(self, num_bytes: np.ndarray) -> np.ndarray:
        """How long each worker's machine takes for what crosses its border; 0 for those who have no part in it: [n]."""
        across = np.where(self._crossing, num_bytes, 0.0)
        received, sent = (self._sums(across, of).reshape(-1, self._per_machine) for of in (self._dst, self._src))
        inward, outward = received.sum(axis=1), sent.sum(axis=1)
        both = inward + outward if self._one_port else np.maximum(inward, outward)
        return np.where(received + sent > 0, self._shared * both[:, None], 0.0).ravel()

    def _sums(self, values: np.ndarray, worker: np.ndarray) -> np.ndarray:
        """The sum of the values [E] of each worker: [n]."""
        return np.bincount(worker, weights=values, minlength=self.num_workers)


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
