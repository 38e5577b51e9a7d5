"""The contract of a topology, the mixing weights on its graphs, and topologies that are made from another one."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import numpy as np

from decentral.errors import ConfigError, suggest
from decentral.registry import components
from decentral.settings import Settings, setting
from decentral.topology.graph import Graph, is_undirected
from decentral.topology.mixing_matrix import MixingMatrix, row_sums
from decentral.topology.rounds import Rounds


class Weights(Enum):
    """How much a worker takes from each neighbour.

    - metropolis: W_ij = 1 / (1 + max(deg_i, deg_j)), symmetric and doubly stochastic; undirected graphs only.
    - uniform: j splits what it has equally among itself and those it sends to, W_ij = W_jj = 1 / (1 + outdeg_j):
      column-stochastic on every graph (push), doubly stochastic where all degrees are equal.
    - pull: i takes equally from itself and those that send to it, W_ij = W_ii = 1 / (1 + indeg_i): row-stochastic on
      every graph, and the same matrix as uniform where all degrees are equal. Elsewhere the workers agree on a wrong
      mean, which weighs those more that are heard by more: only algorithms that ask for no more than rows take it.
    - constant: W_ij = edge_weight on every edge, W_ii = 1 - the rest of the row.
    - auto: metropolis where every edge goes both ways, uniform otherwise.

    What an algorithm needs of its matrices is checked before the run (`requirements`): gossip averages need doubly
    stochastic ones, push-sum column-stochastic ones.
    """

    auto = "auto"
    metropolis = "metropolis"
    uniform = "uniform"
    pull = "pull"
    constant = "constant"


def mixing_matrix(A: Graph, weights: Weights, edge_weight: float | None, topology: str) -> MixingMatrix:
    """The mixing matrix W of a graph; `topology` is its name in messages.

    Raises:
        ConfigError: metropolis on a directed graph, or an edge weight that leaves a worker a negative weight.
    """
    if weights is Weights.uniform or (weights is Weights.auto and not is_undirected(A)):
        share = 1 / (1.0 + A.outdegree)
        return MixingMatrix.on(A, share[A.src], share)
    if weights is Weights.pull:
        share = 1 / (1.0 + A.indegree)
        return MixingMatrix.on(A, share[A.dst], share)
    if weights is Weights.constant:
        assert edge_weight is not None
        degree = int(A.indegree.max())
        if edge_weight * degree > 1 + 1e-12:
            raise ConfigError(
                f"topology.edge_weight={edge_weight:g} gives a worker of topology={topology} with {degree} neighbors "
                f"a negative self-weight: use at most 1/{degree} = {1 / degree:.6g}."
            )
        return _with_the_rest(A, np.full(len(A), edge_weight))
    if not is_undirected(A):
        raise ConfigError(
            f"topology.weights=metropolis needs an undirected graph, but topology={topology} is directed: use "
            "topology.weights=uniform."
        )
    return _with_the_rest(A, 1 / (1.0 + np.maximum(A.outdegree[A.src], A.outdegree[A.dst])))


def _with_the_rest(A: Graph, weight: np.ndarray) -> MixingMatrix:
    """W with these weights of the edges, and on the diagonal 1 - the rest of the row."""
    return MixingMatrix.on(A, weight, 1.0 - row_sums(A.num_workers, A.src, A.dst, weight))


class Topology(Settings, ABC, where="topology"):
    """Turns a number of workers into rounds; its fields are its configuration. Pure: same fields, same rounds."""

    name: str

    def implied_num_workers(self) -> int | None:
        """How many workers this topology is made for, if it says so itself (a graph from a file)."""
        return None

    def notes(self) -> tuple[str, ...]:
        """What a reader of the results has to know of how it was made; sentences without the last full stop."""
        return ()

    def weights_given(self) -> bool:
        """Whether its weights are the user's own, so that `weights` has no rule to choose."""
        return False

    @abstractmethod
    def schedule(self, num_workers: int) -> Rounds:
        """The rounds for `num_workers` workers; ConfigError if this topology does not exist for so many."""


MAX_WORKERS = 8192
MAX_ROUNDS = 10_000


def check_num_workers(num_workers: int) -> None:
    """Raises ConfigError unless a run is made for so many workers."""
    if not 1 <= num_workers <= MAX_WORKERS:
        raise ConfigError(f"num_workers={num_workers} is out of range; use a number from 1 to {MAX_WORKERS}.")


@dataclass
class MatrixTopology(Topology):
    """A topology given by its matrices, whose weights are part of it: there is no rule to choose."""

    name: str

    @abstractmethod
    def rounds(self, num_workers: int) -> Rounds:
        """The rounds for `num_workers` >= 1 workers; ConfigError if this topology does not exist for so many."""

    def schedule(self, num_workers: int) -> Rounds:
        """The rounds for `num_workers` workers; ConfigError if this topology does not exist for so many."""
        check_num_workers(num_workers)
        return self.rounds(num_workers)


@dataclass(frozen=True)
class Repeating:
    """The graphs of `period` rounds; those of round t are `repeating[t]`, 0 <= t < period, computed when asked for."""

    period: int
    graphs: Callable[[int], tuple[Graph, ...]]

    def __len__(self) -> int:
        return self.period

    def __getitem__(self, round: int) -> tuple[Graph, ...]:
        return self.graphs(round)


@dataclass
class GraphTopology(Topology):
    """A topology given by graphs, with mixing weights by a common rule (see `Weights`).

    A concrete topology gives `name` its default and implements `graphs`.

    weights      metropolis: 1 / (1 + the larger degree), symmetric; uniform: a worker splits equally among itself and
                 its receivers; pull: it takes equally from itself and its senders; constant: `edge_weight` on every
                 edge; auto: metropolis for undirected graphs, uniform otherwise
    edge_weight  weight of every edge, with weights=constant only
    """

    name: str
    weights: Weights = Weights.auto
    edge_weight: float | None = setting(None, above=0)

    def __post_init__(self) -> None:
        if self.weights is Weights.constant and self.edge_weight is None:
            raise ConfigError("topology.weights=constant needs topology.edge_weight, the weight of every edge.")
        if self.edge_weight is None:
            return
        if self.weights is not Weights.constant:
            raise ConfigError(
                f"topology.edge_weight={self.edge_weight:g} needs topology.weights=constant, not "
                f"topology.weights={self.weights.name}: set one of them accordingly."
            )

    @abstractmethod
    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]] | list[tuple[np.ndarray, ...]] | Repeating:
        """The graphs of every round and piece (tuple), or bool [n, n]: entry [i, j] says whether j sends to i.

        A list of few rounds, or `repeating` for many.

        Raises ConfigError if there is no such graph with `num_workers` >= 1 vertices.
        """

    def schedule(self, num_workers: int) -> Rounds:
        """The rounds for `num_workers` workers.

        Raises:
            ConfigError: this topology does not exist for so many workers, or not with these weights.
        """
        check_num_workers(num_workers)
        graphs = self.graphs(num_workers)
        rounds = Rounds(
            num_workers,
            lambda round: tuple(self.matrix(Graph.of(A)) for A in graphs[round]),
            num_pieces=len(graphs[0]),
            period=len(graphs),
        )
        for round in range(rounds.period):
            rounds.mixing(round)  # refuses weights that do not suit this round
        return rounds

    def repeating(self, num_workers: int, period: int, graphs: Callable[[int], tuple[Graph, ...]]) -> Repeating:
        """Graphs that repeat after `period` rounds.

        Raises:
            ConfigError: these are more rounds than are gone through to check them before a run.
        """
        if period > MAX_ROUNDS:
            raise ConfigError(
                f"topology={self.name} with num_workers={num_workers} repeats only after more than {MAX_ROUNDS} "
                "rounds, too many to check: use another num_workers, or a topology whose rounds repeat earlier."
            )
        return Repeating(period, graphs)

    def matrix(self, A: Graph) -> MixingMatrix:
        """The mixing matrix of one graph."""
        return mixing_matrix(A, self.weights, self.edge_weight, self.name)


def check_choice(topology: str, graph: str, settings: Mapping[str, Any]) -> None:
    """Refuse a topology.graph that does not exist or is `topology` itself, and settings that it does not have.

    Settings that are None have not been given.

    Raises:
        ConfigError: names the topologies that there are, or the settings.
    """
    topologies = components("topology")
    known = sorted(name for name, its in topologies.items() if name != topology and hasattr(its, "graphs"))
    if graph not in known:
        what = "has matrices, not graphs" if graph in topologies and graph != topology else "is not another topology"
        raise ConfigError(f"topology.graph={graph} {what}.{suggest(graph, known)}")
    for key, value in settings.items():
        own = {f.name for f in dataclasses.fields(topologies[graph])}
        if value is not None and key not in own:
            told = value.name if isinstance(value, Enum) else value
            raise ConfigError(f"topology.{key}={told} is not a setting of topology.graph={graph}: leave it out.")


def graphs_of(graph: str, settings: Mapping[str, Any], num_workers: int) -> list[tuple[Graph, ...]] | Repeating:
    """The graphs of the topology `graph` with these settings, by round and piece (see GraphTopology.graphs).

    Raises:
        ConfigError: it does not exist for so many workers.
    """
    found = topology_of(graph, settings).graphs(num_workers)
    return found if isinstance(found, Repeating) else [tuple(Graph.of(A) for A in pieces) for pieces in found]


def topology_of(graph: str, settings: Mapping[str, Any]) -> GraphTopology:
    """The topology `graph` with the settings that have been given, those that are not None."""
    return cast("GraphTopology", components("topology")[graph](**{k: v for k, v in settings.items() if v is not None}))
