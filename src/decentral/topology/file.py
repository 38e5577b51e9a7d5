"""Topologies read from a file: your own graph, or one for each round; or a real graph, by networkx."""

from __future__ import annotations

import csv
import hashlib
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from decentral.errors import ConfigError
from decentral.store.digests import file_digest
from decentral.store.files import at_home, natural_order
from decentral.topology.graph import Graph, directed, undirected
from decentral.topology.mixing_matrix import MixingMatrix, row_sums
from decentral.topology.rounds import Rounds
from decentral.topology.topology import MAX_ROUNDS, GraphTopology, Weights, check_num_workers

_COLUMNS = ("source", "target", "weight")
_NAMES = [{*_COLUMNS[:count], *more} for count in (2, 3) for more in ((), ("round",))]
"""Valid column names of a CSV file."""


@dataclass(frozen=True)
class EdgeList:
    """Edges source[e] -> target[e] of round[e], int64 [E], with weights float64 [E] or none; `place[e]` is the position
    in the file."""

    path: Path
    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray | None
    place: list[str]
    round: np.ndarray | None = None
    matrices: tuple[int, int] | None = None
    """T and n of a file of matrices, whose edges are directed."""

    @property
    def period(self) -> int:
        """Return the number of rounds."""
        if self.matrices is not None:
            return self.matrices[0]
        return 1 if self.round is None else int(self.round.max()) + 1

    def of_round(self, round: int) -> EdgeList:
        """Return the edges of one round."""
        if self.round is None:
            return self
        its = np.flatnonzero(self.round == round)
        weight = None if self.weight is None else self.weight[its]
        return EdgeList(self.path, self.source[its], self.target[its], weight, [self.place[e] for e in its])

    def check(self, num_workers: int, directed: bool) -> None:
        """Raise ConfigError, naming the position, for an invalid graph on `num_workers` workers."""
        seen: dict[tuple[int, ...], str] = {}
        round = [0] * len(self.place) if self.round is None else self.round.tolist()
        for t, source, target, place in zip(round, self.source.tolist(), self.target.tolist(), self.place, strict=True):
            if min(source, target) < 0 or max(source, target) >= num_workers:
                raise ConfigError(
                    f"{place} of topology.path={self.path} has the edge {source},{target}: with "
                    f"num_workers={num_workers}, use workers 0 to {num_workers - 1}."
                )
            if source == target and self.weight is None:
                raise ConfigError(
                    f"{place} of topology.path={self.path} is a loop from worker {source} to itself: "
                    "give all edges a weight, or remove the loop."
                )
            edge = (t, source, target) if directed else (t, min(source, target), max(source, target))
            if edge in seen:
                why = "" if directed else " (edges are undirected unless topology.directed=true)"
                raise ConfigError(
                    f"{place} of topology.path={self.path} repeats the edge {source},{target} of {seen[edge]}{why}: "
                    "list each edge once."
                )
            seen[edge] = place


def _no_edges(path: Path) -> ConfigError:
    return ConfigError(
        f"topology.path={path} has no edges: give a .csv file with lines source,target[,weight], separated by commas, "
        "or an .npz file with the integers 'edges' [E, 2], or 'matrices' [T, n, n]."
    )


def read_csv(path: Path) -> EdgeList:
    """Read source,target[,weight], one edge per line; an optional header names the columns in any order, including
    round."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        try:
            rows = [(f"line {reader.line_num}", [cell.strip() for cell in row]) for row in reader if any(row)]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ConfigError(f"topology.path={path} cannot be read as CSV: {error}.") from error
    names = list(_COLUMNS[: len(rows[0][1])]) if rows else []
    if len(names) == 1:
        raise ConfigError(
            f"{rows[0][0]} of topology.path={path} has no comma: every line must be source,target or "
            "source,target,weight; topology=networkx reads edge lists separated by spaces (.edgelist, .edges, .txt)."
        )
    if rows and not any(_is_number(cell) for cell in rows[0][1]):
        where, head = rows.pop(0)
        names = [cell.lstrip("# ").lower() for cell in head]
        if set(names) not in _NAMES or len(set(names)) < len(names):
            raise ConfigError(
                f"{where} of topology.path={path} names the columns {','.join(head)}: name them source,target or "
                "source,target,weight, in any order, with round where graphs change, or leave this line out."
            )
    if not rows:
        raise _no_edges(path)
    for place, row in rows:
        if len(row) != len(names) or len(names) < 2:
            raise ConfigError(
                f"{place} of topology.path={path} has {len(row)} columns: every line must be source,target "
                "or every line source,target,weight."
            )
    source, target = (
        np.array([_number(row[names.index(name)], np.int64, "a worker's number", place, path) for place, row in rows])
        for name in _COLUMNS[:2]
    )
    weight = None
    if "weight" in names:
        column = names.index("weight")
        weight = np.array([_number(row[column], float, "a finite weight", place, path) for place, row in rows])
    round = None
    if "round" in names:
        column = names.index("round")
        round = np.array([_number(row[column], np.uint32, "a round", place, path) for place, row in rows], np.int64)
    return EdgeList(path, source, target, weight, [place for place, _ in rows], round)


def read_npz(path: Path) -> EdgeList:
    """Read the integers `edges` [E, 2] (source, target), with optional `weights` [E] and `round` [E]; or `matrices`
    [T, n, n] or [n, n]."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            if "matrices" in arrays:
                return _of_matrices(path, arrays["matrices"])
            edges, weights, round = arrays["edges"], arrays.get("weights"), arrays.get("round")
    except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile, MemoryError) as error:
        raise ConfigError(f"topology.path={path} cannot be read as .npz with an array 'edges': {error}.") from error
    if edges.ndim != 2 or edges.shape[1] != 2 or not np.issubdtype(edges.dtype, np.integer):
        raise ConfigError(
            f"'edges' of topology.path={path} must be integers of shape [E, 2], not {edges.dtype} {list(edges.shape)}."
        )
    if not len(edges):
        raise _no_edges(path)
    place = [f"row {e} of 'edges'" for e in range(len(edges))]
    source, target = edges.astype(np.int64).T
    if round is not None and not (
        round.shape == (len(edges),) and np.issubdtype(round.dtype, np.integer) and (round >= 0).all()
    ):
        raise ConfigError(f"'round' of topology.path={path} must be {len(edges)} integers from 0, one for each edge.")
    if weights is None:
        return EdgeList(path, source, target, None, place, round)
    if weights.shape != (len(edges),):
        raise ConfigError(
            f"'weights' of topology.path={path} must have one entry for each of the {len(edges)} edges, "
            f"not the shape {list(weights.shape)}."
        )
    numbers = zip(weights.tolist(), place, strict=True)
    weight = np.array([_number(value, float, "a finite weight", where, path) for value, where in numbers])
    return EdgeList(path, source, target, weight, place, round)


def _of_matrices(path: Path, matrices: np.ndarray) -> EdgeList:
    """Return the nonzero entries of W [T, n, n] or [n, n] and all diagonal entries."""
    W = matrices[None] if matrices.ndim == 2 else matrices
    if W.ndim != 3 or W.shape[1] != W.shape[2] or not W.size or not np.isfinite(W).all():
        raise ConfigError(
            f"'matrices' of topology.path={path} must be finite numbers of shape [T, n, n] or [n, n], not "
            f"{list(matrices.shape)}."
        )
    round, target, source = np.nonzero((W != 0) | np.eye(W.shape[1], dtype=bool))
    place = [f"matrix {t}, row {i}, column {j}" for t, i, j in zip(round, target, source, strict=True)]
    weight = W[round, target, source].astype(float)
    return EdgeList(path, source, target, weight, place, round, (len(W), W.shape[1]))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _number(cell: str, kind: Any, what: str, place: str, path: Path) -> Any:
    try:
        value = kind(cell)
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{place} of topology.path={path} has '{cell}' instead of {what}.")
    return value


@dataclass
class File(GraphTopology):
    """Your own graph, or one per round, from the .csv or .npz file at `path`.

    A CSV file has lines `source,target[,weight]`, or a header with these names in any order; an .npz file has `edges`
    [E, 2] and optionally `weights` [E]. Workers are numbered from 0. Edges are listed once and go both ways unless
    directed=true. With weights, W[target, source] = weight, and a worker without a self-loop `i,i,weight` keeps 1 - the
    rest of its row. Without, W follows the rule `weights`. The path may start with ~ and is relative to the working
    directory.

    Time-varying graphs: a CSV file with a header has a column `round` (0, 1, ...; a round without edges sends nothing),
    an .npz file `round` [E], or, instead of edges, `matrices` [T, n, n] with W[i, j] of each round. The rounds repeat.
    """

    name: str = "file"
    path: str | None = field(default=None, metadata={"content": True})
    directed: bool = False
    reads: ClassVar[Sequence[str]] = (".csv", ".npz")

    def implied_num_workers(self) -> int:
        """Return one more than the largest worker number in the file, or the size of its matrices."""
        edges = self._edges()
        if edges.matrices is not None:
            return edges.matrices[1]
        return int(max(edges.source.max(), edges.target.max())) + 1

    def notes(self) -> tuple[str, ...]:
        """Say how the lines were interpreted."""
        if self._edges().matrices is not None:
            return ()
        way = "from a to b only" if self.directed else "both ways; topology.directed=true reads it from a to b only"
        return (f"a line a,b of topology.path={self.path} is an edge {way}",)

    def weights_given(self) -> bool:
        """Return whether the file has weights."""
        return self._edges().weight is not None

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return the graph of each round. Raise ConfigError if the file is unreadable or does not fit n workers."""
        edges = self._edges(num_workers)
        return [(self._graph(edges.of_round(t), num_workers),) for t in range(edges.period)]

    def schedule(self, num_workers: int) -> Rounds:
        """Return the rounds of the file. Raise ConfigError if it is unreadable or does not fit n workers."""
        check_num_workers(num_workers)
        edges = self._edges(num_workers)
        each = [edges.of_round(t) for t in range(edges.period)]
        found = [self._matrix(its, self._graph(its, num_workers)) for its in each]
        return Rounds(num_workers, lambda round: (found[round],), period=len(found))

    def _one_way(self) -> bool:
        return self.directed or self._edges().matrices is not None

    def _graph(self, edges: EdgeList, num_workers: int) -> Graph:
        join = directed if self._one_way() else undirected
        return join(num_workers, edges.source, edges.target)

    def _matrix(self, edges: EdgeList, A: Graph) -> MixingMatrix:
        """Return W from the weights of the file, or by the rule `weights` if it has none."""
        n = A.num_workers
        if edges.weight is None:
            return super().matrix(A)
        if self.weights is not Weights.auto:
            raise ConfigError(
                f"topology.weights={self.weights.name} conflicts with topology.path={self.path}, which has weights: "
                "leave topology.weights out, or remove the weights from the file."
            )
        loops = edges.source == edges.target
        own = np.full(n, np.nan)
        own[edges.source[loops]] = edges.weight[loops]
        weight = np.zeros(len(A))
        ends = [(edges.source, edges.target), (edges.target, edges.source)]
        for source, target in ends[: 1 if self._one_way() else 2]:
            weight[np.searchsorted(A.keys, (target * n + source)[~loops])] = edges.weight[~loops]
        rest = np.isnan(own)
        own[rest] = 1.0 - row_sums(n, A.src, A.dst, weight)[rest]
        over = np.flatnonzero(rest & (own < -1e-12))
        if len(over):
            raise ConfigError(
                f"topology.path={self.path}: the weights of what worker {over[0]} takes from others sum to "
                f"{1 - own[over[0]]:g}, more than 1: reduce them, or give its own weight as a loop "
                f"{over[0]},{over[0]},weight."
            )
        return MixingMatrix.on(A, weight, own)

    def _edges(self, num_workers: int | None = None) -> EdgeList:
        if self.path is None:
            raise ConfigError("topology=file needs topology.path=FILE, a .csv or .npz file with the edges.")
        path = at_home(self.path)
        if not path.is_file():
            raise ConfigError(f"topology.path={self.path} is not a file (looked for {path.absolute()}).")
        edges = _read_unchanged(path, file_digest(path))
        if edges.period > MAX_ROUNDS:
            raise ConfigError(f"topology.path={self.path} has {edges.period} rounds: use at most {MAX_ROUNDS}.")
        if num_workers is not None:
            edges.check(num_workers, self._one_way())
            if edges.matrices is not None and edges.matrices[1] != num_workers:
                raise ConfigError(
                    f"topology.path={self.path} has matrices for {edges.matrices[1]} workers, not for num_workers="
                    f"{num_workers}: use num_workers={edges.matrices[1]}."
                )
        return edges


@lru_cache(maxsize=2)
def _read_unchanged(path: Path, _digest: str) -> EdgeList:
    """Read the file once: a configuration asks several times, and a million lines take seconds."""
    return read_npz(path) if path.suffix == ".npz" else read_csv(path)


READERS = {
    ".graphml": "read_graphml",
    ".gml": "read_gml",
    ".adjlist": "read_adjlist",
    **dict.fromkeys((".edgelist", ".edges", ".txt"), "read_edgelist"),
}
"""Extension, also before .gz -> the function of networkx that reads the file."""


@dataclass
class NetworkX(GraphTopology):
    """A real graph, read by networkx from the file at `path`: its largest connected component, without weights.

    The extension selects the format: GraphML (.graphml), GML (.gml), an edge list (.edgelist, .edges, .txt; a line
    `source target`, further columns are ignored) or an adjacency list (.adjlist; a line has a node and its neighbors);
    each may be compressed (.gz). An edge in one direction goes both ways, repeated edges count once, and loops are
    dropped. Of components of equal size, the one with the first node of the file counts. Workers 0, 1, ... are its
    nodes in natural order: numbers by value, then names with 2 before 10. W follows the rule `weights`: Metropolis
    weights by default. num_workers is the number of these nodes, and may be left out.

    path    the file, which may start with ~ and is relative to the working directory
    graph   in Python: a graph of networkx instead, as in topology={"name": "networkx", "graph": graph}
    """

    name: str = "networkx"
    path: str | None = field(default=None, metadata={"content": True})
    graph: Any = None
    reads: ClassVar[Sequence[str]] = (*READERS, *(f"{suffix}.gz" for suffix in READERS))

    @property
    def given(self) -> Any:
        """Return the graph from Python."""
        return self.graph

    def files_digest(self) -> str:
        """Return the digest of the graph from Python."""
        return "" if self.graph is None else hashlib.sha256(repr(self._component()).encode()).hexdigest()[:16]

    def implied_num_workers(self) -> int:
        """Return the number of nodes of the largest component."""
        return len(self._component()[0])

    def worker_names(self, num_workers: int) -> list[str]:
        """Return the names of the nodes, unless they are 0 ... n - 1."""
        names = list(map(str, self._component()[0]))
        return [] if names == list(map(str, range(num_workers))) else names

    def notes(self) -> tuple[str, ...]:
        """Say how many nodes are left out."""
        nodes, total, _ = self._component()
        note = f"the largest component of {self._source} has {len(nodes)} of its {total} nodes"
        return () if len(nodes) == total else (note,)

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return the graph. Raise ConfigError if the file is unreadable or does not have n nodes."""
        nodes, _, edges = self._component()
        if len(nodes) != num_workers:
            raise ConfigError(
                f"{self._source} has {len(nodes)} nodes in its largest component, not num_workers={num_workers}: leave "
                f"num_workers out, or use num_workers={len(nodes)}."
            )
        return [(undirected(num_workers, *edges.T),)]

    @property
    def _source(self) -> str:
        return f"topology.path={self.path}" if self.graph is None else "topology.graph"

    def _component(self) -> tuple[list[Any], int, np.ndarray]:
        if self.graph is not None:
            return largest_component(self.graph, self._source)
        if self.path is None:
            raise ConfigError(
                "topology=networkx needs topology.path=FILE: give a GraphML file, an edge list or an adjacency list."
            )
        path = at_home(self.path)
        if not path.is_file():
            raise ConfigError(f"topology.path={self.path} is not a file (looked for {path.absolute()}).")
        return _component_in(path, file_digest(path))


@lru_cache(maxsize=2)
def _component_in(path: Path, _digest: str) -> tuple[list[Any], int, np.ndarray]:
    """Return the largest component of the graph in a file."""
    import networkx as nx

    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix not in READERS:
        raise ConfigError(
            f"topology.path={path} has the extension '{suffix}': use {', '.join(READERS)}; or topology=file, which "
            "reads .csv and .npz."
        )
    settings: dict[str, Any] = {"data": False} if READERS[suffix] == "read_edgelist" else {}
    try:
        if suffix == ".gml" and not nx.get_node_attributes(nx.read_gml(path, label="id"), "label"):
            settings = {"label": "id"}
        graph = getattr(nx, READERS[suffix])(path, **settings)
    except Exception as error:  # the readers raise various errors for an invalid file
        raise ConfigError(f"topology.path={path} cannot be read by networkx.{READERS[suffix]}: {error}.") from error
    return largest_component(graph, f"topology.path={path}")


def largest_component(graph: Any, source: str) -> tuple[list[Any], int, np.ndarray]:
    """Return the nodes of the largest component in the order of the workers, the number of all nodes, and the edges of
    the component as workers [E, 2]. Raise ConfigError, naming the source, if it has no edge."""
    import networkx as nx

    undirected = nx.Graph(graph)
    largest: set[Any] = max(nx.connected_components(undirected), key=len, default=set())
    nodes = natural_order(largest)
    if len(nodes) < 2:
        raise ConfigError(
            f"{source} has no edges between different nodes: give a graph with some; lines of an edge list have spaces "
            "between nodes (topology=file reads commas)."
        )
    number = {node: worker for worker, node in enumerate(nodes)}
    edges = [(number[a], number[b]) for a, b in undirected.subgraph(nodes).edges if a != b]
    return nodes, len(undirected), np.array(sorted(edges), dtype=np.int64)
