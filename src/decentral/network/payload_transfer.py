"""How payloads, and what they look like, get from process to process."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from decentral.network.payload import Known, Payload, PayloadVerbs, Sizes, bytes_of, unpacked
from decentral.network.transports.transport import Buffer, CutEdge, Expected, Transport
from decentral.topology.delivery import Neighbors

_BLOCK = 1024
"""How many bytes say what a payload looks like, if they are enough."""


class _Crossings(NamedTuple):
    """What crosses in a round: the processes to which each local worker's payload goes; the workers whose come."""

    peers: list[list[int]]
    workers: list[int]


class PayloadTransfer(PayloadVerbs):
    """The payloads of the local workers to those of other processes: a buffer for each payload and process."""

    transport: Transport
    layout: Sequence[range]
    rank: int
    device: torch.device
    owner: np.ndarray
    """The process of each worker."""

    @cached_property
    def _others(self) -> list[int]:
        return [p for p in range(len(self.layout)) if p != self.rank]

    @cached_property
    def _cut_edges(self) -> list[tuple[CutEdge, int]]:
        """The edges from other processes into this one, each with its piece; widths are filled in later."""
        firsts = np.searchsorted(self.edges.dst, [workers.start for workers in self.layout])
        found = []
        for e in self.local_edges:
            peer, back = int(self.owner[self.edges.src[e]]), int(self.edges.reverse[e])
            if peer != self.rank:
                edge = CutEdge(e - self.local_edges.start, peer, back - int(firsts[peer]), 0, e, back)
                found.append((edge, int(self.edges.piece[e])))
        return found

    @cached_property
    def _inner_edges(self) -> list[tuple[int, int, int]]:
        """(row of m, row for the message that goes back, piece) of the edges between local workers."""
        first = self.local_edges.start
        return [
            (e - first, int(self.edges.reverse[e]) - first, int(self.edges.piece[e]))
            for e in self.local_edges
            if int(self.owner[self.edges.src[e]]) == self.rank
        ]

    @cached_property
    def _cut_counts(self) -> np.ndarray:
        """How many edges of each piece leave each process: int64 [d, processes]."""
        src, dst = self.owner[self.edges.src], self.owner[self.edges.dst]
        counts = np.zeros((self.rounds.num_pieces, len(self.layout)), dtype=np.int64)
        np.add.at(counts, (self.edges.piece[src != dst], src[src != dst]), 1)
        return counts

    def _everybodys_sizes(self, payloads: Sequence[Payload]) -> list[Sizes]:
        """What the payloads of all workers look like, of which everybody knows names and types. Not counted.

        Raises ValueError if processes have tensors of other names or types.
        """
        kinds = {name: dtype for name, (dtype, _) in payloads[0].sizes.items()}
        signature = zlib.crc32(repr(kinds).encode())
        numbers = [signature, *(length for payload in payloads for _, length in payload.sizes.values())]
        ours = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        num_bytes = [8 * (1 + len(workers) * len(kinds)) for workers in self.layout]
        self.transport.reserve(max(num_bytes))
        expected = [Expected(p, num_bytes[p]) for p in self._others]
        came = self.transport.exchange([Buffer([ours], self._others)], expected, self.device)
        said = dict(zip(self._others, (each.view(torch.int64).tolist() for each in came), strict=True))
        said[self.rank] = numbers
        for p, (theirs, *_) in said.items():
            if theirs != signature:
                raise ValueError(f"the payloads of process {p} have tensors of other names or types than ours")
        lengths = [each for p in range(len(self.layout)) for each in said[p][1:]]
        rows = (lengths[i * len(kinds) : (i + 1) * len(kinds)] for i in range(len(self.owner)))
        return [{name: (kinds[name], length) for name, length in zip(kinds, row, strict=True)} for row in rows]

    def _sizes_of_one(self, payload: Payload | None, root: int) -> Sizes:
        """What worker `root`'s payload looks like, names and types included, of which only it knows. Not counted."""
        said = b""
        if payload is not None:
            described = [
                (name, str(dtype).removeprefix("torch."), size) for name, (dtype, size) in payload.sizes.items()
            ]
            said = json.dumps(described).encode()
            said = len(said).to_bytes(8, "big") + said
        block = self._spread_bytes(said[:_BLOCK].ljust(_BLOCK, b"\0"), root, _BLOCK)
        missing = 8 + int.from_bytes(block[:8], "big") - _BLOCK
        if missing > 0:
            block += self._spread_bytes(said[_BLOCK:], root, missing)
        described = json.loads(block[8 : _BLOCK + missing])
        return {name: (getattr(torch, dtype), size) for name, dtype, size in described}

    def _allgather(self, payloads: Sequence[Payload], known: Known) -> list[Payload]:
        """Those of all workers."""
        num_bytes = self._reserve(known)
        peers = [self._others] * len(self.workers)
        workers = [j for p in self._others for j in self.layout[p]]
        found = self._exchange(payloads, known, num_bytes, _Crossings(peers, workers))
        found |= dict(zip(self.workers, payloads, strict=True))
        return [found[j] for j in range(len(self.owner))]

    def _broadcast(self, payload: Payload | None, root: int, known: Known) -> Payload:
        """Worker `root`'s."""
        (num_bytes,) = known.num_bytes.tolist()
        self.transport.reserve(num_bytes)
        buffer = Buffer(payload.parts, self._others) if payload is not None else None
        sent = self.transport.wire_messages
        flat = self.transport.spread(buffer, int(self.owner[root]), num_bytes, self.device)
        self.transport.count(0, (self.transport.wire_messages - sent) * known.length_bytes)
        if payload is not None:
            return payload
        assert flat is not None
        return unpacked(flat, known.each[0])

    def _swap(self, payloads: Sequence[Payload], neighbors: Neighbors, known: Known) -> list[dict[int, Payload]]:
        """For each local worker those of the workers that it hears of."""
        if "payloads" not in neighbors.memo:
            neighbors.memo["payloads"] = self._payloads_crossing(neighbors), self._heard(neighbors)
        crossings, heard = neighbors.memo["payloads"]
        found = self._exchange(payloads, known, self._reserve(known), crossings)
        found |= dict(zip(self.workers, payloads, strict=True))
        return [{j: found[j] for j in workers} for workers in heard]

    def _relay_payloads(self, payloads: Sequence[Payload], sizes: Sequence[Sizes]) -> list[Payload]:
        num_bytes, cut = [bytes_of(each) for each in sizes], self._cut_edges
        most_edges = int(np.bincount(self.owner[self.edges.dst]).max())
        self.transport.reserve(int((num_bytes @ self._cut_counts).max()), most_edges)
        buffers = [Buffer(payloads[edge.row].parts, [edge.peer], edge.back) for edge, _ in cut]
        self.transport.count(len(buffers), sum(buffer.num_bytes for buffer in buffers))
        expected = [Expected(edge.peer, num_bytes[h], edge.row) for edge, h in cut]
        came = self.transport.exchange(buffers, expected, self.device)
        found = {row: payloads[back] for row, back, _ in self._inner_edges}
        for (edge, h), flat in zip(cut, came, strict=True):
            found[edge.row] = unpacked(flat, sizes[h])
        return [found[row] for row in range(len(payloads))]

    def _exchange(
        self, payloads: Sequence[Payload], known: Known, num_bytes: np.ndarray, crossings: _Crossings
    ) -> dict[int, Payload]:
        """The payloads that come, by worker."""
        buffers, of_each = [], num_bytes.tolist()
        for number, (payload, peers) in enumerate(zip(payloads, crossings.peers, strict=True)):
            if peers:
                buffers.append(Buffer(payload.parts, peers, number))
                self.transport.count(len(peers), len(peers) * (buffers[-1].num_bytes + known.length_bytes))
        expected = []
        for j in crossings.workers:
            p = int(self.owner[j])
            expected.append(Expected(p, of_each[j], j - self.layout[p].start))
        came = self.transport.exchange(buffers, expected, self.device)
        return {j: unpacked(flat, known.each[j]) for j, flat in zip(crossings.workers, came, strict=True)}

    def _reserve(self, known: Known) -> np.ndarray:
        """Room for the payloads of each process; returns the bytes of each payload."""
        num_bytes = known.num_bytes
        most = int(np.add.reduceat(num_bytes, [workers.start for workers in self.layout]).max())
        largest = max(map(len, self.layout))
        self.transport.reserve(most, largest)
        return num_bytes

    def _payloads_crossing(self, neighbors: Neighbors) -> _Crossings:
        size, peer = len(self.layout), self.owner[neighbors.dst]
        cut = peer != self.owner[neighbors.src]
        workers, peers = np.divmod(np.unique(neighbors.src[cut] * size + peer[cut]), size)
        return _Crossings(
            [peers[workers == i].tolist() for i in self.workers],
            workers[peers == self.rank].tolist(),
        )

    def _heard(self, neighbors: Neighbors) -> list[list[int]]:
        """The workers of which each local one hears, ascending."""
        ends = np.searchsorted(neighbors.dst, [*self.workers, self.workers.stop])
        return [neighbors.src[a:b].tolist() for a, b in pairwise(ends.tolist())]

    def _spread_bytes(self, content: bytes, root: int, num_bytes: int) -> bytes:
        """So many bytes, which the process of worker `root` has, on all of them."""
        source = int(self.owner[root])
        buffer, before = None, (self.transport.wire_messages, self.transport.wire_bytes)
        if source == self.rank:
            buffer = Buffer([torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self.device)], self._others)
        self.transport.reserve(num_bytes)
        came = self.transport.spread(buffer, source, num_bytes, self.device)
        self.transport.wire_messages, self.transport.wire_bytes = before
        return content if came is None else bytes(came.tolist())
