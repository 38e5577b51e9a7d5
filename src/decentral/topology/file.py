"""A topology read from a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.edge_list import EdgeList, read_csv, read_npz
from decentral.topology.graph import directed, undirected
from decentral.topology.topology import GraphTopology
from decentral.topology.weights import Weights


@dataclass
class File(GraphTopology):
    """A graph of your own, read from the .csv or .npz file at `path`.

    A CSV file has lines `source,target[,weight]` and may have a header; an .npz file has `edges` [E, 2] and maybe
    `weights` [E]. Workers are numbered from 0. Edges are listed once and go both ways unless directed=true.
    With weights, W[target, source] = weight, and a worker without a loop `i,i,weight` of its own keeps 1 - the rest of
    its row. Without, W follows the rule `weights`. The path may start with ~ and is relative to the working directory.
    """

    name: str = "file"
    path: str | None = field(default=None, metadata={"content": True})
    directed: bool = False

    def implied_num_workers(self) -> int:
        """One more than the largest number in the file."""
        edges = self._edges()
        return int(max(edges.source.max(), edges.target.max())) + 1

    def graphs(self, num_workers: int) -> list[tuple[np.ndarray, ...]]:
        """The graph of the file; ConfigError if it cannot be read or is none on n workers."""
        edges = self._read(num_workers)
        join = directed if self.directed else undirected
        return [(join(num_workers, edges.source, edges.target),)]

    def matrix(self, A: np.ndarray) -> np.ndarray:
        """W from the weights of the file; where it has none, by the rule `weights`."""
        edges = self._read(len(A))
        if edges.weight is None:
            return super().matrix(A)
        if self.weights is not Weights.auto:
            raise ConfigError(
                f"topology.weights={self.weights.name} contradicts topology.path={self.path}, which has weights: "
                "leave topology.weights out, or remove the weights from the file."
            )
        W = np.zeros(A.shape)
        W[edges.target, edges.source] = edges.weight
        if not self.directed:
            W[edges.source, edges.target] = edges.weight
        rest = np.setdiff1d(np.arange(len(A)), edges.source[edges.source == edges.target])
        W[rest, rest] = 1.0 - W[rest].sum(axis=1)
        over = rest[W[rest, rest] < -1e-12]
        if len(over):
            raise ConfigError(
                f"topology.path={self.path}: the weights of what worker {over[0]} takes from others sum to "
                f"{1 - W[over[0], over[0]]:g}, more than 1: make them smaller, or give its own weight as a loop "
                f"{over[0]},{over[0]},weight."
            )
        return W

    def _read(self, num_workers: int) -> EdgeList:
        edges = self._edges()
        edges.check(num_workers, self.directed)
        return edges

    def _edges(self) -> EdgeList:
        if self.path is None:
            raise ConfigError("topology=file needs topology.path=FILE, a .csv or .npz file with the edges.")
        path = Path(self.path).expanduser()
        if not path.is_file():
            raise ConfigError(f"topology.path={self.path} is not a file (looked for {path.absolute()}).")
        return read_npz(path) if path.suffix == ".npz" else read_csv(path)
