"""How payloads, and what they look like, get from process to process."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from decentral.network.delivery import Neighbors
from decentral.network.payload import Known, Payload, Sizes, bytes_of, unpacked
from decentral.network.transports.transport import Expected, Parcel, Transport
from decentral.topology.rounds import RelayEdges

_BLOCK = 1024
"""How many bytes say what a payload looks like, if they are enough."""


class _Crossings(NamedTuple):
    """What crosses in a round: the processes to which each local worker's payload goes; the workers whose come."""

    peers: list[list[int]]
    workers: list[int]


class _Cut(NamedTuple):
    """The edges between processes; each process numbers those into it, which are those out of it, too."""

    ours: list[tuple[int, int, int, int, int]]
    """Into this one: (row, piece, peer, our number of the edge, the peer's number of the one that goes back)."""
    inner: list[tuple[int, int]]
    """(row, row of the edge that goes back) of those between local workers."""
    counts: np.ndarray
    """Of each piece and process: int64 [d, processes]."""


class PayloadTransfer:
    """The payloads of the local workers to those of other processes: a parcel for each payload and process."""

    def __init__(self, transport: Transport, layout: Sequence[range], rank: int, device: torch.device) -> None:
        """`layout` are the workers of each process; this is process `rank`."""
        self.transport, self.layout, self.rank, self.device = transport, layout, rank, device
        self.local = layout[rank]
        self.owner = np.repeat(np.arange(len(layout)), [len(workers) for workers in layout])
        self._starts = np.array([workers.start for workers in layout])
        self._others = [p for p in range(len(layout)) if p != rank]
        self._cut: tuple[RelayEdges, _Cut] | None = None

    def everybodys_sizes(self, payloads: Sequence[Payload]) -> list[Sizes]:
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
        came = self.transport.exchange([Parcel([ours], self._others)], expected, self.device)
        said = dict(zip(self._others, (each.view(torch.int64).tolist() for each in came), strict=True))
        said[self.rank] = numbers
        for p, (theirs, *_) in said.items():
            if theirs != signature:
                raise ValueError(f"the payloads of process {p} have tensors of other names or types than ours")
        lengths = [each for p in range(len(self.layout)) for each in said[p][1:]]
        rows = (lengths[i * len(kinds) : (i + 1) * len(kinds)] for i in range(len(self.owner)))
        return [{name: (kinds[name], length) for name, length in zip(kinds, row, strict=True)} for row in rows]

    def sizes_of_one(self, payload: Payload | None, root: int) -> Sizes:
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

    def allgather(self, payloads: Sequence[Payload], known: Known) -> list[Payload]:
        """Those of all workers."""
        num_bytes = self._reserve(known)
        peers = [self._others] * len(self.local)
        workers = [j for p in self._others for j in self.layout[p]]
        found = self._exchange(payloads, known, num_bytes, _Crossings(peers, workers))
        found |= dict(zip(self.local, payloads, strict=True))
        return [found[j] for j in range(len(self.owner))]

    def broadcast(self, payload: Payload | None, root: int, known: Known) -> Payload:
        """Worker `root`'s."""
        (num_bytes,) = known.num_bytes.tolist()
        self.transport.reserve(num_bytes)
        parcel = Parcel(payload.parts, self._others) if payload is not None else None
        sent = self.transport.wire_messages
        flat = self.transport.spread(parcel, int(self.owner[root]), num_bytes, self.device)
        self.transport.count(0, (self.transport.wire_messages - sent) * known.length_bytes)
        if payload is not None:
            return payload
        assert flat is not None
        return unpacked(flat, known.each[0])

    def swap(self, payloads: Sequence[Payload], neighbors: Neighbors, known: Known) -> list[dict[int, Payload]]:
        """For each local worker those of the workers that it hears of."""
        if "payloads" not in neighbors.memo:
            neighbors.memo["payloads"] = self._crossings(neighbors), self._heard(neighbors)
        crossings, heard = neighbors.memo["payloads"]
        found = self._exchange(payloads, known, self._reserve(known), crossings)
        found |= dict(zip(self.local, payloads, strict=True))
        return [{j: found[j] for j in workers} for workers in heard]

    def over_edges(self, payloads: Sequence[Payload], edges: RelayEdges, sizes: Sequence[Sizes]) -> list[Payload]:
        """For each edge into a local worker, by row, what comes over it; payloads[row] goes back over it."""
        if self._cut is None or self._cut[0] is not edges:
            self._cut = edges, self._cut_edges(edges, len(sizes))
        cut, num_bytes = self._cut[1], [bytes_of(each) for each in sizes]
        self.transport.reserve(int((num_bytes @ cut.counts).max()), int(cut.counts.sum(axis=0).max()))
        parcels = [Parcel(payloads[row].parts, [peer], number) for row, _, peer, number, _ in cut.ours]
        self.transport.count(len(parcels), sum(parcel.num_bytes for parcel in parcels))
        expected = [Expected(peer, num_bytes[h], number) for _, h, peer, _, number in cut.ours]
        came = self.transport.exchange(parcels, expected, self.device)
        found = {row: payloads[back] for row, back in cut.inner}
        for (row, h, *_), flat in zip(cut.ours, came, strict=True):
            found[row] = unpacked(flat, sizes[h])
        return [found[row] for row in range(len(payloads))]

    def _cut_edges(self, edges: RelayEdges, num_pieces: int) -> _Cut:
        src, dst = self.owner[edges.src], self.owner[edges.dst]
        cut, number = src != dst, np.zeros(len(edges), dtype=np.int64)
        for p in range(len(self.layout)):
            into = cut & (dst == p)
            number[into] = np.arange(into.sum())
        counts = np.zeros((num_pieces, len(self.layout)), dtype=np.int64)
        np.add.at(counts, (edges.piece[cut], dst[cut]), 1)
        (local,) = np.nonzero(dst == self.rank)
        ours, inner = local[cut[local]], local[~cut[local]]
        first, back = int(local[0]) if len(local) else 0, edges.reverse
        columns = ours - first, edges.piece[ours], src[ours], number[ours], number[back[ours]]
        return _Cut(
            list(zip(*(column.tolist() for column in columns), strict=True)),
            list(zip((inner - first).tolist(), (back[inner] - first).tolist(), strict=True)),
            counts,
        )

    def _exchange(
        self, payloads: Sequence[Payload], known: Known, num_bytes: np.ndarray, crossings: _Crossings
    ) -> dict[int, Payload]:
        """The payloads that come, by worker."""
        parcels, of_each = [], num_bytes.tolist()
        for number, (payload, peers) in enumerate(zip(payloads, crossings.peers, strict=True)):
            if peers:
                parcels.append(Parcel(payload.parts, peers, number))
                self.transport.count(len(peers), len(peers) * (parcels[-1].num_bytes + known.length_bytes))
        expected = []
        for j in crossings.workers:
            p = int(self.owner[j])
            expected.append(Expected(p, of_each[j], j - self.layout[p].start))
        came = self.transport.exchange(parcels, expected, self.device)
        return {j: unpacked(flat, known.each[j]) for j, flat in zip(crossings.workers, came, strict=True)}

    def _reserve(self, known: Known) -> np.ndarray:
        """Room for the payloads of each process; returns the bytes of each payload."""
        num_bytes = known.num_bytes
        most = int(np.add.reduceat(num_bytes, self._starts).max())
        largest = max(map(len, self.layout))
        self.transport.reserve(most, largest)
        return num_bytes

    def _crossings(self, neighbors: Neighbors) -> _Crossings:
        size, peer = len(self.layout), self.owner[neighbors.dst]
        cut = peer != self.owner[neighbors.src]
        workers, peers = np.divmod(np.unique(neighbors.src[cut] * size + peer[cut]), size)
        return _Crossings(
            [peers[workers == i].tolist() for i in self.local],
            workers[peers == self.rank].tolist(),
        )

    def _heard(self, neighbors: Neighbors) -> list[list[int]]:
        """The workers of which each local one hears, ascending."""
        ends = np.searchsorted(neighbors.dst, [*self.local, self.local.stop])
        return [neighbors.src[a:b].tolist() for a, b in pairwise(ends.tolist())]

    def _spread_bytes(self, content: bytes, root: int, num_bytes: int) -> bytes:
        """So many bytes, which the process of worker `root` has, on all of them."""
        source = int(self.owner[root])
        parcel, before = None, (self.transport.wire_messages, self.transport.wire_bytes)
        if source == self.rank:
            parcel = Parcel([torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self.device)], self._others)
        self.transport.reserve(num_bytes)
        came = self.transport.spread(parcel, source, num_bytes, self.device)
        self.transport.wire_messages, self.transport.wire_bytes = before
        return content if came is None else bytes(came.tolist())
