"""The interface of a topology, mixing weights on its graphs, and topologies derived from another one."""

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
    """The rule for mixing weights.

    - metropolis: W_ij = 1 / (1 + max(deg_i, deg_j)), symmetric and doubly stochastic; undirected graphs only.
    - uniform: j splits its value equally among itself and its out-neighbors, W_ij = W_jj = 1 / (1 + outdeg_j):
      column-stochastic on every graph (push), doubly stochastic if all degrees are equal.
    - pull: i averages itself and its in-neighbors, W_ij = W_ii = 1 / (1 + indeg_i): row-stochastic on every graph, and
      the same matrix as uniform if all degrees are equal. Otherwise the workers converge to a wrong mean that favors
      workers with many out-neighbors: only algorithms that require just row-stochasticity accept it.
    - constant: W_ij = edge_weight on every edge, W_ii = 1 - the rest of the row.
    - auto: metropolis if every edge goes both ways, uniform otherwise.

    The needs of an algorithm are checked before the run (`requirements`): gossip averaging needs doubly stochastic
    matrices, push-sum column-stochastic ones.
    """

    auto = "auto"
    metropolis = "metropolis"
    uniform = "uniform"
    pull = "pull"
    constant = "constant"


def mixing_matrix(A: Graph, weights: Weights, edge_weight: float | None, topology: str) -> MixingMatrix:
    """Return the mixing matrix W of a graph; `topology` is its name in messages.

    Raises:
        ConfigError: metropolis on a directed graph, or an edge weight that makes a diagonal weight negative.
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
    """Return W with these edge weights, and 1 - the rest of the row on the diagonal."""
    return MixingMatrix.on(A, weight, 1.0 - row_sums(A.num_workers, A.src, A.dst, weight))


class Topology(Settings, ABC, where="topology"):
    """A pure function from the number of workers to rounds; its fields are its configuration."""

    name: str

    def on(self, config: Any) -> Topology:
        """Return the topology for a run: one that depends on the data looks at `config.task.class_counts(config)`."""
        return self

    def implied_num_workers(self) -> int | None:
        """Return the number of workers that this topology is for, if it is fixed (a graph from a file)."""
        return None

    def notes(self) -> tuple[str, ...]:
        """Return notes for readers of the results on how it was built; sentences without the final period."""
        return ()

    def worker_names(self, num_workers: int) -> list[str]:
        """Return the name of each worker, if they have names."""
        return []

    def weights_given(self) -> bool:
        """Return whether the user gives its weights, so that `weights` has no rule to choose."""
        return False

    @abstractmethod
    def schedule(self, num_workers: int) -> Rounds:
        """Return the rounds for `num_workers` workers. Raise ConfigError if the topology does not exist for this
        number."""


MAX_WORKERS = 8192
MAX_ROUNDS = 10_000


def check_num_workers(num_workers: int) -> None:
    """Raise ConfigError unless a run can have this number of workers."""
    if not 1 <= num_workers <= MAX_WORKERS:
        raise ConfigError(f"num_workers={num_workers} is out of range; use a number from 1 to {MAX_WORKERS}.")


@dataclass
class MatrixTopology(Topology):
    """A topology given by matrices, which include the weights: there is no rule to choose."""

    name: str

    @abstractmethod
    def rounds(self, num_workers: int) -> Rounds:
        """Return the rounds for `num_workers` >= 1 workers. Raise ConfigError if the topology does not exist then."""

    def schedule(self, num_workers: int) -> Rounds:
        """Return the rounds for `num_workers` workers. Raise ConfigError if the topology does not exist for this
        number."""
        check_num_workers(num_workers)
        return self.rounds(num_workers)


@dataclass(frozen=True)
class Repeating:
    """The graphs of `period` rounds: `repeating[t]`, 0 <= t < period, computed on demand."""

    period: int
    graphs: Callable[[int], tuple[Graph, ...]]

    def __len__(self) -> int:
        return self.period

    def __getitem__(self, round: int) -> tuple[Graph, ...]:
        return self.graphs(round)


@dataclass
class GraphTopology(Topology):
    """A topology given by graphs, with mixing weights from a common rule (see `Weights`).

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
        """Return the graphs of every round and piece (tuple), or bool [n, n]: entry [i, j] says whether j sends to i.

        It is a list for few rounds, `repeating` for many.

        Raises ConfigError if there is no such graph with `num_workers` >= 1 vertices.
        """

    def schedule(self, num_workers: int) -> Rounds:
        """Return the rounds for `num_workers` workers.

        Raises:
            ConfigError: the topology does not exist for this number of workers, or not with these weights.
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
            rounds.mixing(round)  # raises for weights that do not fit this round
        return rounds

    def repeating(self, num_workers: int, period: int, graphs: Callable[[int], tuple[Graph, ...]]) -> Repeating:
        """Return graphs that repeat after `period` rounds.

        Raises:
            ConfigError: the period exceeds the number of rounds checked before a run.
        """
        if period > MAX_ROUNDS:
            raise ConfigError(
                f"topology={self.name} with num_workers={num_workers} repeats only after more than {MAX_ROUNDS} "
                "rounds, too many to check: use another num_workers, or a topology whose rounds repeat earlier."
            )
        return Repeating(period, graphs)

    def matrix(self, A: Graph) -> MixingMatrix:
        """Return the mixing matrix of one graph."""
        return mixing_matrix(A, self.weights, self.edge_weight, self.name)


def check_choice(topology: str, graph: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for a topology.graph that does not exist or is `topology` itself, and for settings that it
    lacks.

    Settings that are None were not given.

    Raises:
        ConfigError: lists the available topologies or settings.
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
    """Return the graphs of the topology `graph` with these settings, by round and piece (see GraphTopology.graphs).

    Raises:
        ConfigError: it does not exist for this number of workers.
    """
    graphs = topology_of(graph, settings).graphs(num_workers)
    return graphs if isinstance(graphs, Repeating) else [tuple(Graph.of(A) for A in pieces) for pieces in graphs]


def topology_of(graph: str, settings: Mapping[str, Any]) -> GraphTopology:
    """Return the topology `graph` with the given settings, those that are not None."""
    return cast("GraphTopology", components("topology")[graph](**{k: v for k, v in settings.items() if v is not None}))
