"""The contract of a topology, and the configuration that all topologies made of graphs share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.settings import Settings, setting
from decentral.topology.graph import Graph
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds
from decentral.topology.weights import Weights, mixing_matrix


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
        raise ConfigError(
            f"num_workers={num_workers} must be from 1 to {MAX_WORKERS}, the most that a run is made for."
        )


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
                 those it sends to; pull: it takes equally from itself and those it hears; constant: `edge_weight` on
                 every edge; auto: metropolis where every edge goes both ways, uniform otherwise
    edge_weight  of every edge, with weights=constant only
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
                f"topology.edge_weight={self.edge_weight:g} is used with topology.weights=constant only, "
                f"not with topology.weights={self.weights.name}."
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
