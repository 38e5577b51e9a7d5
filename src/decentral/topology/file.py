"""A topology read from a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from decentral.errors import ConfigError
from decentral.store.digests import file_digest
from decentral.store.files import at_home
from decentral.topology.edge_list import EdgeList, read_csv, read_npz
from decentral.topology.graph import Graph, directed, undirected
from decentral.topology.mixing_matrix import MixingMatrix, row_sums
from decentral.topology.topology import GraphTopology
from decentral.topology.weights import Weights


@dataclass
class File(GraphTopology):
    """A graph of your own, read from the .csv or .npz file at `path`.

    A CSV file has lines `source,target[,weight]`, or a header with these names in any order; an .npz file has `edges`
    [E, 2] and maybe `weights` [E]. Workers are numbered from 0. Edges are listed once and go both ways unless
    directed=true. With weights, W[target, source] = weight, and a worker without a loop `i,i,weight` of its own keeps
    1 - the rest of its row. Without, W follows the rule `weights`. The path may start with ~ and is relative to the
    working directory.
    """

    name: str = "file"
    path: str | None = field(default=None, metadata={"content": True})
    directed: bool = False

    def implied_num_workers(self) -> int:
        """One more than the largest number in the file."""
        edges = self._edges()
        return int(max(edges.source.max(), edges.target.max())) + 1

    def notes(self) -> tuple[str, ...]:
        """Which way the lines were read."""
        way = "from a to b only" if self.directed else "both ways; topology.directed=true reads it from a to b only"
        return (f"a line a,b of topology.path={self.path} is an edge {way}",)

    def weights_given(self) -> bool:
        """Whether the file has weights."""
        return self._edges().weight is not None

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """The graph of the file; ConfigError if it cannot be read or is none on n workers."""
        edges = self._read(num_workers)
        join = directed if self.directed else undirected
        return [(join(num_workers, edges.source, edges.target),)]

    def matrix(self, A: Graph) -> MixingMatrix:
        """W from the weights of the file; where it has none, by the rule `weights`."""
        n = A.num_workers
        edges = self._read(n)
        if edges.weight is None:
            return super().matrix(A)
        if self.weights is not Weights.auto:
            raise ConfigError(
                f"topology.weights={self.weights.name} contradicts topology.path={self.path}, which has weights: "
                "leave topology.weights out, or remove the weights from the file."
            )
        loops = edges.source == edges.target
        own = np.full(n, np.nan)
        own[edges.source[loops]] = edges.weight[loops]
        weight = np.zeros(len(A))
        ends = [(edges.source, edges.target), (edges.target, edges.source)]
        for source, target in ends[: 1 if self.directed else 2]:
            weight[np.searchsorted(A.keys, (target * n + source)[~loops])] = edges.weight[~loops]
        rest = np.isnan(own)
        own[rest] = 1.0 - row_sums(n, A.src, A.dst, weight)[rest]
        over = np.flatnonzero(rest & (own < -1e-12))
        if len(over):
            raise ConfigError(
                f"topology.path={self.path}: the weights of what worker {over[0]} takes from others sum to "
                f"{1 - own[over[0]]:g}, more than 1: make them smaller, or give its own weight as a loop "
                f"{over[0]},{over[0]},weight."
            )
        return MixingMatrix.on(A, weight, own)

    def _read(self, num_workers: int) -> EdgeList:
        edges = self._edges()
        edges.check(num_workers, self.directed)
        return edges

    def _edges(self) -> EdgeList:
        if self.path is None:
            raise ConfigError("topology=file needs topology.path=FILE, a .csv or .npz file with the edges.")
        path = at_home(self.path)
        if not path.is_file():
            raise ConfigError(f"topology.path={self.path} is not a file (looked for {path.absolute()}).")
        return _read_unchanged(path, file_digest(path))


@lru_cache(maxsize=2)
def _read_unchanged(path: Path, _digest: str) -> EdgeList:
    """A configuration asks several times, and a million lines take seconds."""
    return read_npz(path) if path.suffix == ".npz" else read_csv(path)
